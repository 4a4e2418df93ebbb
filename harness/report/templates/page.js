const $ = (selector) => document.querySelector(selector);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (value !== "") element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};

// ---- theme: that of the system until the button is pressed --------------------------------
const root = document.documentElement;
const themeButton = $("#theme");
const isDark = () => root.dataset.theme
  ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const showTheme = () => {
  themeButton.setAttribute("aria-pressed", isDark());
  themeButton.textContent = isDark() ? "Light theme" : "Dark theme";
};
themeButton.onclick = () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
};
showTheme();

// ---- printing opens folded blocks ---------------------------------------------------------
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const each of unfolded) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of unfolded) each.open = false;
});

// ---- legends: highlight one implementation ------------------------------------------------
for (const figure of document.querySelectorAll("figure")) {
  const buttons = [...figure.querySelectorAll(".keys button")];
  for (const button of buttons) {
    button.onclick = () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const each of buttons) each.setAttribute("aria-pressed", on && each === button);
      figure.classList.toggle("focused", on);
      for (const drawn of figure.querySelectorAll('[class^="series-"]')) {
        drawn.classList.toggle("series-shown", on && drawn.classList.contains(button.dataset.series));
      }
    };
  }
}
