// Asks the daemon, with the key that was given in this tab.

const KEPT = "hotreload.key";  // in sessionStorage: for this tab, until it is closed
let isAskedFor = false;
let askForKey = () => {};

// `ask` is called when the daemon wants a key; with true when it does not know the one it got.
export const wireDaemon = (ask) => {
  askForKey = ask;
};

export const hasKey = () => sessionStorage.getItem(KEPT) !== null;

export const needsKey = () => isAskedFor && !hasKey();

export const keepKey = (key) => sessionStorage.setItem(KEPT, key);

export async function answerOf(path, options = {}) {
  if (needsKey()) throw new Error("the daemon asks for a key");
  const key = sessionStorage.getItem(KEPT);
  const headers = { ...options.headers };
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.status === 401) refuse(key);
  if (!answer.ok) throw new Error(await reasonOf(path, answer));
  return answer;
}

function refuse(key) {
  isAskedFor = true;
  if (key === sessionStorage.getItem(KEPT)) sessionStorage.removeItem(KEPT);
  if (!hasKey()) askForKey(key !== null);
}

const reasonOf = async (path, answer) =>
  (await answer.json().catch(() => ({}))).detail ?? `${path} answered ${answer.status}`;
