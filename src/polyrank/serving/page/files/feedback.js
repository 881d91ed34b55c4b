// What became of a suggestion, told to a server that wants to know.

import { ApiError, ask } from "./api.js";
import { get, sentence } from "./dom.js";

let wanted = false;

/** Learn from the server's own description whether it keeps feedback. */
export function learn(routes) {
  wanted = routes.has("/v1/feedback");
}

/** Whether outcomes are sent. */
export const isWanted = () => wanted;

/** Send an outcome: "taken", "edited" or "refused". */
export async function tell(answer, action, reply = null, finalText = null) {
  if (!wanted || !answer.request_id) return;
  const body = { request_id: answer.request_id, action };
  if (reply) body.candidate_id = reply.id;
  if (finalText !== null) body.final_text = finalText;
  try {
    await ask("/v1/feedback", { body });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    sentence(get("banner"), `What became of the reply was not recorded. ${error.message}`);
  }
}
