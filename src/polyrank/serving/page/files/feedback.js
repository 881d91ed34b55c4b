// What became of a suggestion, told to a server that wants to know.

import { ask } from "./api.js";

let wanted = false;

/** Learn from the server's own description whether it keeps feedback. */
export function learn(routes) {
  wanted = routes.has("/v1/feedback");
}

/** Whether outcomes are sent. */
export const isWanted = () => wanted;

/** Send an outcome: "taken", "edited" or "refused". A server that does not want it is not asked again. */
export async function tell(answer, action, reply = null, finalText = null) {
  if (!wanted || !answer.request_id) return;
  const body = { request_id: answer.request_id, action };
  if (reply) body.candidate_id = reply.id;
  if (finalText !== null) body.final_text = finalText;
  try {
    await ask("/v1/feedback", { body });
  } catch {
    wanted = false;
  }
}
