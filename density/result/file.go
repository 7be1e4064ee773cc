package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// File is the file name of the results in their folder.
const File = "results.json"

// fileLimit is the largest accepted size. It is far above the size for 300 containers in thirty
// runs of every figure, and small enough to fit into memory.
const fileLimit = 256 << 20

// ErrForeign says that a file is not a results file of this version.
var ErrForeign = errors.New("not results of this version of tsugiki density")

// Load reads the results of a folder. If the file does not exist the error matches fs.ErrNotExist.
// If it is damaged or foreign the error matches ErrForeign.
func Load(dir string) (*Results, error) {
	path := filepath.Join(dir, File)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load results: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, fileLimit+1))
	if err != nil {
		return nil, fmt.Errorf("load results: %w", err)
	}
	if len(data) > fileLimit {
		return nil, fmt.Errorf("load %s: larger than %d bytes: %w", path, fileLimit, ErrForeign)
	}
	r, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	return r, nil
}

// Parse parses results in the format of Save.
func Parse(data []byte) (*Results, error) {
	var version struct{ Version int }
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if version.Version != Version {
		return nil, fmt.Errorf("%w: version %d, want %d", ErrForeign, version.Version, Version)
	}
	var r Results
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return &r, nil
}

// Save writes the results into an existing folder. The file is complete or unchanged, even if the
// disk is full or the machine stops.
func (r *Results) Save(dir string) error {
	r.Version = Version
	if err := r.check(); err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	if err := WriteFile(filepath.Join(dir, File), append(data, '\n')); err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	return nil
}

// WriteFile replaces a file. The file is complete or unchanged.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// check returns an error for results that no sweep writes, and from which no page can be made.
func (r *Results) check() error {
	names := make(map[string]bool)
	for i, f := range r.Figures {
		if f == nil || f.Name == "" {
			return fmt.Errorf("figure %d has no name", i)
		}
		if names[f.Name] {
			return fmt.Errorf("figure %s is there twice", f.Name)
		}
		names[f.Name] = true
		for k, s := range f.Series {
			if s == nil {
				return fmt.Errorf("figure %s: series %d is null", f.Name, k)
			}
			if err := s.check(); err != nil {
				return fmt.Errorf("figure %s: series %q: %w", f.Name, s.Name, err)
			}
		}
	}
	return nil
}

func (s *Series) check() error {
	for i, p := range s.Points {
		if p == nil {
			return fmt.Errorf("point %d is null", i)
		}
		numbers := append([]float64{p.X, p.Median, p.Low, p.High, s.Knee}, p.Samples...)
		for _, v := range p.Extra {
			numbers = append(numbers, v)
		}
		for _, v := range numbers {
			if math.IsNaN(v) || math.Abs(v) > 1e150 {
				return fmt.Errorf("point %d: %v is no measure", i, v)
			}
		}
		if p.Low > p.Median || p.Median > p.High {
			return fmt.Errorf("point %d: median %v is not within %v to %v", i, p.Median, p.Low, p.High)
		}
	}
	return nil
}
