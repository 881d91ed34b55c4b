// Before anything is painted, so that a chosen theme does not flash in the other one.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // storage is switched off; the system's theme it is
}
