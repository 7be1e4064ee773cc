// What is wrong with a page as it is shown: one sentence for each fault.
(() => {
	const faults = [];
	const fault = (what, e) => faults.push(what + (e ? ": " + (e.textContent || e.outerHTML).trim().slice(0, 60) : ""));
	const shown = (e) => e.checkVisibility() && e.getClientRects().length > 0;
	const root = document.documentElement;
	if (root.scrollWidth > root.clientWidth) fault(`the page is ${root.scrollWidth} wide, the window ${root.clientWidth}`);

	// Colours, with what is transparent put over what is below.
	const colour = (text) => {
		const m = text.match(/^rgba?\(([^)]+)\)$/);
		if (!m) throw new Error("colour " + text);
		const [r, g, b, a = 1] = m[1].split(/[, /]+/).map(Number);
		return [r, g, b, a];
	};
	const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
	const paper = (e) => {
		if (!e) return [255, 255, 255, 1];
		const c = colour(getComputedStyle(e).backgroundColor);
		return c[3] === 1 ? c : over(c, paper(e.parentElement));
	};
	const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
		const v = c[i] / 255;
		return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
	}, 0);
	const contrast = (a, b) => {
		const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
		return (high + 0.05) / (low + 0.05);
	};
	const opacity = (e) => (e ? Number(getComputedStyle(e).opacity) * opacity(e.parentElement) : 1);
	const against = (e, property) => {
		const c = colour(getComputedStyle(e)[property]);
		c[3] *= opacity(e);
		return contrast(over(c, paper(e)), paper(e));
	};

	// Text: large enough, in contrast to the paper, and nowhere outside the window but
	// in boxes that scroll.
	const hidden = (e) => e.closest("caption");
	const texts = new Set();
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walk.nextNode()) {
		const e = walk.currentNode.parentElement;
		if (walk.currentNode.data.trim() && shown(e) && !hidden(e) && e.tagName !== "title") texts.add(e);
	}
	if (texts.size < 10) fault(`there are ${texts.size} texts`);
	for (const e of texts) {
		const svg = e.closest("svg");
		const size = parseFloat(getComputedStyle(e).fontSize) * (svg ? svg.getScreenCTM().a : 1);
		if (size < 11) fault(`text of ${size.toFixed(1)} px`, e);
		const ratio = against(e, svg ? "fill" : "color");
		if (ratio < 4.5) fault(`contrast of ${ratio.toFixed(2)}`, e);
		const box = e.getBoundingClientRect();
		if (!e.closest(".scroll, pre") && (box.left < -0.5 || box.right > root.clientWidth + 0.5)) fault("outside the window", e);
	}
	for (const e of document.querySelectorAll("body *")) {
		const style = getComputedStyle(e);
		if (shown(e) && !hidden(e) && style.overflowX === "hidden" && e.scrollWidth > e.clientWidth) fault("cut", e);
	}

	// Plots: something is drawn, all of it inside, and no text over another.
	const plots = [...document.querySelectorAll("svg.plot")].filter(shown);
	for (const svg of plots) {
		const of = svg.getAttribute("aria-label") || "";
		if (svg.getAttribute("role") !== "img" || !of) fault("a plot without a description", svg);
		const where = " in " + of.slice(0, 40);
		const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
		if (!(width > 0 && height > 0)) fault("no viewBox" + where);
		for (const e of svg.querySelectorAll("*")) {
			for (const a of e.attributes) if (/NaN|Infinity|undefined|null/.test(a.value)) fault(`${a.name}="${a.value}"` + where);
			if (!e.getBBox || e.tagName === "title") continue;
			const b = e.getBBox();
			if (b.x < -0.5 || b.y < -0.5 || b.x + b.width > width + 0.5 || b.y + b.height > height + 0.5) {
				fault(`${e.tagName}.${e.getAttribute("class")} outside (${b.x}, ${b.y}, ${b.width}, ${b.height})` + where, e);
			}
		}
		const marks = [...svg.querySelectorAll(".marker, .bar")];
		if (!marks.some((e) => e.getBBox().width > 0 && e.getBBox().height > 0)) fault("nothing is drawn" + where);
		for (const e of svg.querySelectorAll(".stroke, .marker:not(.hollow), .bar:not(.hollow)")) {
			const ratio = against(e, e.matches(".stroke") ? "stroke" : "fill");
			if (ratio < 3) fault(`${e.getAttribute("class")}: contrast of ${ratio.toFixed(2)}` + where);
		}
		const words = [...svg.querySelectorAll("text")];
		words.forEach((e, i) => {
			if (e.textContent.includes("…") && e.matches(".label, .tick")) fault("cut" + where, e);
			const a = e.getBoundingClientRect();
			for (const other of words.slice(i + 1)) {
				const b = other.getBoundingClientRect();
				const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
				const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
				if (x > 1 && y > 2) fault(`"${other.textContent}" is over` + where, e);
			}
		});
	}
	return { faults: [...new Set(faults)], plots: plots.length };
})()
