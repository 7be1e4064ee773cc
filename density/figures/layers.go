package figures

import (
	"context"
	"fmt"
	"time"

	"github.com/tsugiki/tsugiki/density/overlay"
	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/density/rig"
	"github.com/tsugiki/tsugiki/density/sweep"
)

const layerBytes = 4096 // size of each file

// layerFiles is the numbers of files in a folder.
func layerFiles(o *sweep.Options) []int {
	if o.Quick {
		return []int{64}
	}
	return []int{256, 1024, 4096}
}

func planOverlayCreate(o *sweep.Options) (*sweep.Plan, error) {
	p := planLayers(o, overlay.Create, []overlay.Target{overlay.Plain, overlay.Existing, overlay.Absent, overlay.Present})
	p.Figure.Title = "Creating files: overlayfs and the file system below"
	p.Figure.Study = "Creating took about as long with overlayfs as without."
	p.Figure.Notes = append(p.Figure.Notes,
		"A file that the lower layer has is copied up when it is created anew, but not its data (O_TRUNC).")
	return p, nil
}

func planOverlayDelete(o *sweep.Options) (*sweep.Plan, error) {
	p := planLayers(o, overlay.Delete, []overlay.Target{overlay.Plain, overlay.Absent, overlay.Present})
	p.Figure.Title = "Deleting files: overlayfs and the file system below"
	p.Figure.Study = "Deleting took very different times with overlayfs and without."
	p.Figure.Notes = append(p.Figure.Notes,
		"A file that the lower layer has is not deleted there: a whiteout is put over it.")
	return p, nil
}

func planLayers(o *sweep.Options, operation overlay.Operation, targets []overlay.Target) *sweep.Plan {
	p := &sweep.Plan{
		Rounds: rounds(o), Containers: 1, Network: rig.None, Storage: rig.Overlay, Room: rig.Room{Disk: 64 << 20},
		Figure: &result.Figure{
			X: result.Axis{Label: "files", Log: true},
			Y: result.Axis{Label: "each", Unit: "µs", Better: result.Lower},
			Notes: []string{
				fmt.Sprintf("Files of %d bytes in one folder, on the host. Before, everything is written to disk (syncfs) and is in the caches, "+
					"for it was just made; after, syncfs is measured by itself (sync_ms).", layerBytes),
				"Percentiles are of the single files, in microseconds.",
			},
		},
	}
	for _, target := range targets {
		p.Figure.Line(string(target), nil)
		for _, files := range layerFiles(o) {
			p.Steps = append(p.Steps, layerStep(overlay.Job{Operation: operation, Target: target, Files: files, Bytes: layerBytes}))
		}
	}
	return p
}

func layerStep(j overlay.Job) sweep.Step {
	run := func(_ context.Context, e *sweep.Env) ([]sweep.Sample, error) {
		j.Dir = e.Rig.Dir()
		t, err := j.Run()
		if err != nil {
			return nil, err
		}
		var each []float64
		for _, d := range t.Each {
			each = append(each, float64(d)/float64(time.Microsecond))
		}
		extra := percentiles(each)
		extra["sync_ms"] = milliseconds(t.Sync)
		value := float64(t.All) / float64(time.Microsecond) / float64(j.Files)
		return []sweep.Sample{{Series: string(j.Target), X: float64(j.Files), Value: value, Extra: extra}}, nil
	}
	return sweep.Step{
		Key: fmt.Sprintf("%s/%d", j.Target, j.Files), Variant: string(j.Target), Seconds: 0.2 + float64(j.Files)/4000, Run: run,
	}
}
