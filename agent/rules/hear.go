package rules

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/config"
)

// ErrNotAllowed says that annotations ask for more than the configuration allows.
var ErrNotAllowed = errors.New("not allowed")

// ErrRequest says that a request cannot be read.
var ErrRequest = errors.New("bad request")

// heard is what a container's annotations give it: all that they ask for, or nothing.
type heard struct {
	rules Rules
	found bool     // whether an annotation says something about rules
	name  string   // the container's: the engine's, or that of an annotation
	paths []string // of unix endpoints
}

// Given is what a container is given.
type Given struct {
	Rules Rules
	// Found says that rules were found. They may be an empty list.
	Found     bool
	Name      string // the container's: the engine's, or that of an annotation
	Annotated bool   // the rules come from annotations
}

// For finds the rules of a container: those of its registration; else those of its annotations, if
// they are allowed; else those of the configuration for its name. That is the name from its engine,
// so that no annotation takes the name of another container.
func For(cfg *config.Config, r *api.Registration) (Given, error) {
	if r.Rules != nil {
		return given(*r.Rules, true, r.Name)
	}
	h, err := hear(cfg, r)
	for _, path := range h.paths {
		if err == nil {
			err = checkPath(path)
		}
	}
	if err != nil {
		return Given{}, err
	}
	if h.found {
		return Given{h.rules, true, h.name, true}, nil
	}
	texts, found := OfConfig(cfg, r.Name)
	return given(texts, found, h.name)
}

func given(texts api.Rules, found bool, name string) (Given, error) {
	rules, err := Parse(texts)
	if err != nil {
		return Given{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return Given{Rules: rules, Found: found, Name: name}, nil
}

// hear decides whether a container's annotations are allowed. Its error says in one line which is
// not, and which configuration would allow it. hear looks at nothing but its arguments.
func hear(cfg *config.Config, r *api.Registration) (heard, error) {
	h := heard{name: r.Name}
	engine := r.Engine
	if engine == "" {
		engine = "other"
	}
	if !slices.Contains(config.Engines(), engine) {
		return h, fmt.Errorf("%w: unknown engine %q; there are %s", ErrRequest, engine, enumerate(config.Engines()))
	}
	texts, found, err := OfAnnotations(r.Annotations)
	if err != nil {
		return h, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	rules, err := Parse(texts)
	if err != nil {
		return h, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	h.rules, h.found = rules, found
	asked, err := demandsOf(r.Annotations, r.Unknown, rules)
	if err != nil {
		return h, fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	if len(asked.list) == 0 {
		return h, nil
	}
	if err := asked.allowedBy(cfg, engine, r.Name); err != nil {
		return h, err
	}
	if name, is := r.Annotations[api.AnnotationName]; is {
		h.name = name
	}
	for _, ep := range rules.Endpoints.All() {
		if ep.Type == endpoint.Unix {
			h.paths = append(h.paths, ep.Path)
		}
	}
	return h, nil
}

// allowedBy finds the entry that counts, and returns an error if it does not give all demands.
func (d *demands) allowedBy(cfg *config.Config, engine, name string) error {
	const then = "and restart the agent"
	entry := cfg.AllowFor(engine, name)
	if entry == nil {
		return fmt.Errorf("%w: annotation %s%s is not heard, as no [[allow]] in %s is for engine %s and name %s; to have it heard, add these lines to that file %s: %s",
			ErrNotAllowed, api.AnnotationPrefix, d.list[0].annotation, cfg.Path, engine, name, then, d.entry(engine, name))
	}
	w, errs := newAllowance(entry)
	if len(errs) > 0 {
		return &config.Error{File: cfg.Path, Line: errs[0].Line, Err: errs[0].Err}
	}
	missing := d.missing(w)
	if len(missing) == 0 {
		return nil
	}
	what := fmt.Sprintf("asks for %s %s", missing[0].key, missing[0].value)
	switch missing[0].key {
	case keyAnnotations:
		what = "is not one that is heard"
	case keyUnknown:
		what = "may be the image's, which cannot be known here"
	}
	return fmt.Errorf("%w: annotation %s%s %s, and the [[allow]] on line %d of %s does not allow that; to have it heard, write there %s: %s",
		ErrNotAllowed, api.AnnotationPrefix, missing[0].annotation, what, entry.Line, cfg.Path, then, d.lines(w, missing))
}

// entry returns the least [[allow]] that gives all demands to a container of an engine and a name.
func (d *demands) entry(engine, name string) string {
	least, _ := newAllowance(&config.Allow{Names: []config.Text{{Text: literal.Replace(name)}}})
	missing := d.missing(least)
	lines := "[[allow]]; engines = " + tomlList([]string{engine}) + "; "
	if !slices.ContainsFunc(missing, func(m demand) bool { return m.key == keyNames }) {
		lines += "names = " + tomlList(least.lists[keyNames]) + "; "
	}
	return lines + d.lines(least, missing)
}

// annotationKeys returns the keys of Tsugiki's annotations, without their prefix.
func annotationKeys(annotations map[string]string) []string {
	var keys []string
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if key, ours := strings.CutPrefix(name, api.AnnotationPrefix); ours {
			keys = append(keys, key)
		}
	}
	return keys
}

// checkPath refuses a path with symbolic links: a user who may write in an allowed folder could
// lead the path to a folder that is not allowed.
func checkPath(file string) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	dir, err := unix.Openat2(unix.AT_FDCWD, path.Dir(file), &how)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%w: a folder on the path %s is a symbolic link; write where it leads", ErrNotAllowed, file)
	}
	if err != nil {
		return fmt.Errorf("%w: the folder of %s: %w", ErrNotAllowed, file, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	err = unix.Fstatat(dir, path.Base(file), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil // a server may make it later
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = errors.New("it is a symbolic link; write where it leads")
	}
	if err != nil {
		return fmt.Errorf("%w: the path %s: %w", ErrNotAllowed, file, err)
	}
	return nil
}
