package sweep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/density/result"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// JournalFile is the name of the journal in the folder of the results, until the sweep is complete.
// Its first line describes the sweep. Each other line is a step that was made.
const JournalFile = "journal.jsonl"

// journalVersion is the version of the journal's format.
const journalVersion = 1

var (
	// ErrOther says that a journal belongs to a sweep with other options.
	ErrOther = errors.New("is of a sweep with other options")
	// ErrThere says that a folder has results that the sweep would replace, or that another sweep
	// uses it.
	ErrThere = errors.New("choose another folder")
	// errJournal says that a step could not be written to the journal.
	errJournal = errors.New("write journal")
	// ErrNothing says that the folder has no interrupted sweep.
	ErrNothing = errors.New("nothing to resume")
)

type header struct {
	Version int       `json:"version"`
	Figures []string  `json:"figures"`
	Options Options   `json:"options"`
	Started time.Time `json:"started"`
}

// entry is the record of one step.
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
	keys   map[string]bool    // of the steps that were made
}

// earlier tells what to do with the files of an earlier sweep in the folder.
type earlier int

const (
	refuse earlier = iota
	resume
	replace
)

// openJournal makes a journal, or continues an existing one.
func openJournal(dir string, h header, do earlier) (_ *journal, err error) {
	h.Version = journalVersion
	j := &journal{header: h, steps: map[string][]entry{}, keys: map[string]bool{}}
	flags := os.O_RDWR | os.O_CREATE
	if do == resume {
		flags = os.O_RDWR
	}
	j.file, err = os.OpenFile(filepath.Join(dir, JournalFile), flags, 0o644)
	if do == resume && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: there is no interrupted study", ErrNothing, dir)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.file.Close())
		}
	}()
	if err := lock.TakeFromKilled(j.file); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("another run measures into %s: wait for its end, or %w", dir, ErrThere)
	} else if err != nil {
		return nil, fmt.Errorf("lock %s: %w", j.file.Name(), err)
	}
	length, err := j.before(dir, do)
	if err != nil {
		return nil, err
	}
	return j, j.begin(length)
}

// before reads the journal of an earlier sweep, and returns how many of its bytes stay.
func (j *journal) before(dir string, do earlier) (int, error) {
	data, err := io.ReadAll(j.file)
	switch {
	case err != nil:
		return 0, err
	case do == resume:
		whole, err := j.parse(data)
		if err != nil {
			return 0, fmt.Errorf("resume with %s: %w", j.file.Name(), err)
		}
		return len(whole), nil
	case do == replace:
		return 0, nil
	case len(data) > 0:
		return 0, fmt.Errorf("%s has an interrupted study: --resume goes on with it, --force begins anew, or %w", dir, ErrThere)
	}
	if _, err := os.Lstat(filepath.Join(dir, result.File)); err == nil {
		return 0, errors.Join(fmt.Errorf("%s has the results of a study: --force replaces them, or %w", dir, ErrThere), j.remove())
	}
	return 0, nil
}

// begin cuts off the bytes that do not stay, such as an unfinished line. It writes the first line
// if there is none.
func (j *journal) begin(length int) error {
	err := j.file.Truncate(int64(length))
	if err == nil {
		_, err = j.file.Seek(int64(length), io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	if length > 0 {
		return nil
	}
	if j.header.Options.Seed == 0 {
		j.header.Options.Seed = rand.Uint64()
	}
	return j.write(j.header)
}

// parse reads whole lines, and returns the lines that are valid.
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
		return nil, errors.New("the journal is empty")
	}
	return data[:length], nil
}

// sameAs compares the options of the journal's sweep and of the sweep that continues it. If the
// caller gives no seed, the journal's seed is used.
func (h *header) sameAs(want *header) error {
	a, b := h.Options, want.Options
	if b.Seed == 0 {
		b.Seed = a.Seed
	}
	if h.Version != journalVersion || !reflect.DeepEqual(h.Figures, want.Figures) || !sameOptions(a, b) {
		had, _ := json.Marshal(h) // it was read from JSON, so this cannot fail
		return fmt.Errorf("it %w: %s", ErrOther, had)
	}
	return nil
}

// sameOptions treats an empty list like a missing one, because JSON may not keep the difference.
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
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

func (j *journal) close() { j.file.Close() }

// remove removes the journal of a sweep that is complete.
func (j *journal) remove() error { return os.Remove(j.file.Name()) }
