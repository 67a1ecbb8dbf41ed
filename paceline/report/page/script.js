(function () {
  var root = document.documentElement, key = "paceline-theme", button = document.getElementById("theme");
  function kept() { try { return localStorage.getItem(key) } catch (e) { return null } }
  function keep(value) { try { localStorage.setItem(key, value) } catch (e) { /* the choice lasts for this view */ } }
  function dark() {
    var chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function label() { button.textContent = dark() ? "Light" : "Dark" }
  if (kept()) root.dataset.theme = kept();
  label();
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    keep(root.dataset.theme);
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  document.addEventListener("click", function (event) {
    var copy = event.target.closest(".copy");
    if (!copy) return;
    var code = copy.parentElement.querySelector("code"), range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try { document.execCommand("copy"); copy.textContent = "Copied" } catch (e) { copy.textContent = "Selected" }
    setTimeout(function () { copy.textContent = "Copy" }, 1500);
  });
})();
