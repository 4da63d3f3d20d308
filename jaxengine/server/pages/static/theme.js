// The colours that were chosen, before anything is painted. No module: those run after the first paint.
(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("jaxengine.theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("jaxengine.theme", root.dataset.theme);
      dispatchEvent(new Event("themechange"));
    });
  });
})();
