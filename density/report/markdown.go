package report

import (
	"fmt"
	"strings"

	"github.com/tsugiki/tsugiki/density/result"
)

// Markdown returns the findings and the tables of the page.
func Markdown(r *result.Results) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", title)
	if r.Incomplete != "" {
		fmt.Fprintf(&b, "**Incomplete:** %s\n\n", plain(r.Incomplete))
	}
	fmt.Fprintf(&b, "Made in %s, from %s, by\n\n%s\n\n",
		duration(r.Ended.Sub(r.Started)), r.Started.UTC().Format(dateLayout), code(commandLine(r.Command)))
	for _, f := range append(facts(r), options(r)...) {
		fmt.Fprintf(&b, "- %s: %s\n", plain(f.Name), plain(f.Value))
	}
	for _, l := range r.Limits {
		fmt.Fprintf(&b, "- %s\n", plain(l))
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(howToRead, " "))
	for _, f := range r.Figures {
		markdownFigure(&b, f)
	}
	return []byte(b.String())
}

func markdownFigure(b *strings.Builder, f *result.Figure) {
	fmt.Fprintf(b, "\n## %s\n\n", plain(f.Title))
	if f.Study != "" {
		fmt.Fprintf(b, "The study: %s\n\n", plain(f.Study))
	}
	if f.Finding != "" {
		b.WriteString("Here:\n\n")
		for _, sentence := range strings.Split(f.Finding, "\n") {
			fmt.Fprintf(b, "- %s\n", plain(sentence))
		}
		b.WriteString("\n")
	}
	t := tabulate(f)
	markdownRow(b, t.Columns)
	b.WriteString("|---|---" + strings.Repeat("|--:", len(t.Columns)-2) + "|\n")
	for _, r := range t.Rows {
		markdownRow(b, append([]string{r.Series, r.At, r.Runs, r.Median, r.Interval}, r.Extra...))
	}
	for i, n := range f.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "- %s\n", plain(n))
	}
}

func markdownRow(b *strings.Builder, cells []string) {
	for _, c := range cells {
		b.WriteString("| " + plain(c) + " ")
	}
	b.WriteString("|\n")
}

// plain returns text that is no markup and does not end a cell or a line.
var plainer = strings.NewReplacer(
	"\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "&", "&amp;", "`", "\\`", "*", "\\*", "_", "\\_",
	"[", "\\[", "]", "\\]", "\r", " ", "\n", " ",
)

func plain(text string) string { return printable(plainer.Replace(text)) }

// code returns a block of code that its text cannot end: one indented line.
func code(text string) string {
	return "    " + printable(strings.NewReplacer("\r", " ", "\n", " ").Replace(text))
}
