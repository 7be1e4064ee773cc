// Package report shows the results of a density sweep: a page with plots, a Markdown table, a CSV
// table, and the comparison of two sweeps.
//
// It owns their looks. The page is one file. It needs no network, runs no script, and is readable
// in light and dark colours, on a desk and on a telephone. Anybody may have written the
// results.json: its text never becomes markup. The package measures nothing and makes no statistics
// (density/result). It needs no privileges and no particular kernel.
package report

import (
	"fmt"
	"path/filepath"

	"github.com/tsugiki/tsugiki/density/result"
)

// The files of a report, beside result.File.
const (
	PageFile     = "report.html"
	CSVFile      = "results.csv"
	MarkdownFile = "results.md"
)

const title = "Container density report"

const dateLayout = "2006-01-02 15:04 MST"

// howToRead is the explanation on the page and in the Markdown.
var howToRead = []string{
	"Each point is the median of repeated runs, which took turns with the other points of their figure.",
	"Bands and whiskers are the 95 % bootstrap interval of the median from six runs on; with three to five runs they are the range of the runs (75 % at three, 94 % at five); with fewer there is none.",
	"Where the interval is wider than half the median, the point is hollow, its line dotted, and the table says so instead of printing a number.",
	"A knee is where more containers start to cost more than before: the line, in log-log space, bends for the worse there by at least a third.",
}

// Write writes the page and the tables of r beside its results.json. Each file is complete or
// unchanged.
func Write(r *result.Results, dir string) error {
	page, err := HTML(r)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{PageFile, page}, {CSVFile, CSV(r.Figures...)}, {MarkdownFile, Markdown(r)}} {
		if err := result.WriteFile(filepath.Join(dir, f.name), f.data); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return nil
}
