// Uses the page as a person does and prints what it saw as one line of JSON.
// node browser.mjs FOLDER_WITH_NODE_MODULES CHROMIUM URL KEY FOLDER_FOR_SCREENSHOTS
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, executablePath, url, key, shots] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, "any.js"))("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const saw = { problems: [] };
try {
  const page = await browser.newPage({ viewport: { width: 1100, height: 760 }, colorScheme: "light" });
  page.setDefaultTimeout(10_000);
  page.on("pageerror", (error) => saw.problems.push(String(error)));
  page.on("console", (message) => {
    // The browser itself reports answers such as 401, which are asked for here.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) saw.problems.push(message.text());
  });
  const last = (part) => page.locator("article.assistant").last().locator(part);
  const ended = () => page.locator("article.running").waitFor({ state: "detached" });
  const shot = (name) => page.screenshot({ path: join(shots, `${name}.png`) });

  await page.goto(url);
  await page.locator("#key-row").waitFor();
  await page.fill("#key", key);
  await page.keyboard.press("Tab");
  await page.locator("#state.ready").waitFor();
  saw.model = await page.textContent("#model");
  await shot("empty");

  // A stream that grows, and the button that stops it.
  await page.fill("#max-tokens", "");
  await page.fill("#prompt", "Count for me, please");
  await page.keyboard.press("Enter");
  await last(".text").filter({ hasText: "102 103" }).waitFor();
  const early = (await last(".text").textContent()).length;
  await last(".text").filter({ hasText: "150" }).waitFor();
  saw.grew = (await last(".text").textContent()).length - early;
  saw.rateWhileRunning = await page.textContent("#rate");
  await shot("running");
  await page.click("#stop");
  await ended();
  saw.stopped = await last(".text").textContent();
  saw.stoppedNote = await last(".note").textContent();
  await page.waitForTimeout(300);
  saw.stoppedLater = await last(".text").textContent();

  // An answer that ends by itself; keyboard alone.
  await page.keyboard.type("it's a line");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("and <b>\"$HOME\"</b> 3");
  await page.keyboard.press("Enter");
  await last(".note").waitFor();
  saw.mine = await page.locator("article.user").last().locator(".text").textContent();
  saw.whole = await last(".text").textContent();
  saw.wholeNote = await last(".note").textContent();
  await page.click("summary");
  saw.curl = await page.textContent("#command");
  await shot("curl");
  await page.click("summary");

  // Escape stops as well.
  await page.fill("#prompt", "Why?");
  await page.keyboard.press("Enter");
  await last(".text").filter({ hasText: "😀😀" }).waitFor();
  await page.keyboard.press("Escape");
  await ended();
  saw.emoji = await last(".text").textContent();

  // What the server refuses is shown, and the message is given back.
  await page.fill("#prompt", "x".repeat(3000));
  await page.keyboard.press("Enter");
  saw.error = await last(".error").textContent();
  saw.givenBack = (await page.inputValue("#prompt")).length;
  await page.fill("#prompt", "");
  await page.emulateMedia({ colorScheme: "dark" });
  await shot("dark");
  await page.setViewportSize({ width: 390, height: 700 });
  await shot("narrow");

  await page.click("#new");
  saw.left = await page.locator("article").count();
} finally {
  await browser.close();
}
console.log(JSON.stringify(saw));
