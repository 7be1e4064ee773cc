package sweep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"
)

// JournalFile is what a sweep has in the folder of its results until it is complete:
// a line of what it is, and a line for each step that was made.
const JournalFile = "journal.jsonl"

// journalVersion is that of its format.
const journalVersion = 1

// ErrOther says that a journal is another sweep's.
var ErrOther = errors.New("is of a sweep with other options")

type header struct {
	Version int       `json:"version"`
	Figures []string  `json:"figures"`
	Options Options   `json:"options"`
	Started time.Time `json:"started"`
}

// entry is one step that was made.
type entry struct {
	Figure  string   `json:"figure"`
	Key     string   `json:"key"`
	Round   int      `json:"round"`
	Seconds float64  `json:"seconds"`
	Samples []Sample `json:"samples"`
}

type journal struct {
	header header
	file   *os.File
	steps  map[string][]entry // by figure
	keys   map[string]bool    // of those that were made
}

// openJournal begins a journal, or continues the one that is there. A folder without a
// journal has nothing to continue.
func openJournal(dir string, h header, resume bool) (*journal, error) {
	h.Version = journalVersion
	j := &journal{header: h, steps: map[string][]entry{}, keys: map[string]bool{}}
	path := filepath.Join(dir, JournalFile)
	var before []byte
	if resume {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("nothing to resume: %w", err)
		}
		if err != nil {
			return nil, err
		}
		if before, err = j.parse(data); err != nil {
			return nil, fmt.Errorf("resume with %s: %w", path, err)
		}
	}
	var err error
	if j.file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(j.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is another sweep's that runs: %w", dir, err), j.file.Close())
	}
	// What was written last may be half a line.
	if err = j.file.Truncate(int64(len(before))); err == nil {
		_, err = j.file.Seek(int64(len(before)), 0)
	}
	if err == nil && len(before) == 0 {
		if j.header.Options.Seed == 0 {
			j.header.Options.Seed = rand.Uint64()
		}
		err = j.write(j.header)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write journal: %w", err), j.file.Close())
	}
	return j, nil
}

// parse reads whole lines, and returns those that it has understood.
func (j *journal) parse(data []byte) ([]byte, error) {
	length := 0
	for line := range bytes.Lines(data) {
		if line[len(line)-1] != '\n' {
			break
		}
		if length == 0 {
			var h header
			if err := json.Unmarshal(line, &h); err != nil {
				return nil, fmt.Errorf("read the first line: %w", err)
			}
			if err := h.sameAs(&j.header); err != nil {
				return nil, err
			}
			j.header = h
		} else {
			var e entry
			if json.Unmarshal(line, &e) != nil {
				break
			}
			j.add(e)
		}
		length += len(line)
	}
	if length == 0 {
		return nil, errors.New("it is empty")
	}
	return data[:length], nil
}

// sameAs compares what a journal was begun with to what it is to be continued with. A
// seed that was not asked for is the journal's.
func (h *header) sameAs(want *header) error {
	a, b := h.Options, want.Options
	if b.Seed == 0 {
		b.Seed = a.Seed
	}
	if h.Version != journalVersion || !reflect.DeepEqual(h.Figures, want.Figures) || !sameOptions(a, b) {
		had, _ := json.Marshal(h) // it was read from JSON
		return fmt.Errorf("it %w: %s", ErrOther, had)
	}
	return nil
}

// sameOptions does not tell an empty list from none, as JSON may not.
func sameOptions(a, b Options) bool {
	for _, list := range []*[]string{&a.Networks, &a.Runtimes, &a.Storages, &b.Networks, &b.Runtimes, &b.Storages} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

func stepKey(figure, key string, round int) string {
	return fmt.Sprintf("%s/%d/%s", figure, round, key)
}

func (j *journal) add(e entry) {
	if k := stepKey(e.Figure, e.Key, e.Round); !j.keys[k] {
		j.keys[k] = true
		j.steps[e.Figure] = append(j.steps[e.Figure], e)
	}
}

func (j *journal) made(figure, key string, round int) bool {
	return j.keys[stepKey(figure, key, round)]
}

func (j *journal) count() int { return len(j.keys) }

func (j *journal) append(e entry) error {
	j.add(e)
	return j.write(e)
}

func (j *journal) write(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

func (j *journal) close() { j.file.Close() }

// remove removes the journal of a sweep that is complete.
func (j *journal) remove() error { return os.Remove(j.file.Name()) }
