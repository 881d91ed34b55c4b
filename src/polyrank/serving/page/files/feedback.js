// Sends outcomes of suggestions to servers that store feedback.

import { ApiError, ask } from "./api.js";
import { get, sentence } from "./dom.js";

let enabled = false;

/** Detect from the server's routes whether it stores feedback. */
export function detect(routes) {
  enabled = routes.has("/v1/feedback");
}

/** Whether outcomes are sent. */
export const isEnabled = () => enabled;

/** Send an outcome: "taken", "edited" or "refused". */
export async function sendOutcome(answer, action, reply = null, finalText = null) {
  if (!enabled || !answer.request_id) return;
  const body = { request_id: answer.request_id, action };
  if (reply) body.candidate_id = reply.id;
  if (finalText !== null) body.final_text = finalText;
  try {
    await ask("/v1/feedback", { body });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    sentence(get("banner"), `The outcome was not recorded. ${error.message}`);
  }
}
