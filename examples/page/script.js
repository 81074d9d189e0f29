(() => {
  const show = (result, i) => {
    result.querySelectorAll(".text").forEach(text => text.querySelectorAll(".frame").forEach(
      (frame, j) => frame.classList.toggle("on", i === j)));
    result.querySelector(".at").value = i;
    result.querySelector("output").textContent = result.querySelector(".player").dataset.labels.split("|")[i];
  };
  const stop = result => {
    clearTimeout(result.timer);
    result.timer = null;
    result.querySelector(".play").textContent = "▶ Replay";
  };
  const play = (result, i) => {
    const last = Number(result.querySelector(".at").max);
    show(result, i);
    if (i >= last || !result.isConnected) return stop(result);
    result.querySelector(".play").textContent = "❚❚ Pause";
    result.timer = setTimeout(() => play(result, i + 1), 1000 / Number(result.querySelector(".speed").value));
  };
  document.addEventListener("click", event => {
    if (!event.target.matches?.(".player .play")) return;
    const result = event.target.closest(".result"), at = result.querySelector(".at");
    if (result.timer) return stop(result);
    play(result, at.value === at.max ? 0 : Number(at.value));
  });
  document.addEventListener("input", event => {
    if (!event.target.matches?.(".player .at")) return;
    const result = event.target.closest(".result");
    stop(result);
    show(result, Number(event.target.value));
  });
  // Where the result is below what is seen, as on a phone, it is brought into view.
  document.addEventListener("click", event => {
    if (!event.target.closest?.("#write, #another")) return;
    const result = document.querySelector("#result");
    if (result.getBoundingClientRect().top > 0.5 * window.innerHeight) result.scrollIntoView();
  });
  // What is selected in the text becomes a gap, or each of its words one to fill in.
  window.markSelected = mark => {
    const area = document.querySelector("#prompt textarea");
    const [from, to] = [area.selectionStart, area.selectionEnd], selected = area.value.slice(from, to);
    const words = selected.match(/[\w'’-]+|[^\s\w]/g) || [mark];
    const marks = mark === "[MASK]" ? words.map(() => mark).join(" ") : mark;
    const space = / $/.test(selected) ? " " : "";
    area.value = area.value.slice(0, from) + marks + space + area.value.slice(to);
    area.dispatchEvent(new Event("input", {bubbles: true}));
    area.focus();
    area.setSelectionRange(from + marks.length, from + marks.length);
  };
})();
