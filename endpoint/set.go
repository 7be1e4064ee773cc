package endpoint

import (
	"fmt"
	"slices"
	"strings"
)

// Set holds the endpoints that one container was given, by name. The zero
// value is an empty set. It is not safe for concurrent use.
type Set struct {
	byName map[string]*Endpoint
}

// Add puts an endpoint into the set. A name that is taken is an error.
func (s *Set) Add(e *Endpoint) error {
	if _, taken := s.byName[e.Name]; taken {
		return fmt.Errorf("%w %q: there is an endpoint of that name already", ErrGrammar, e.Name)
	}
	if s.byName == nil {
		s.byName = map[string]*Endpoint{}
	}
	s.byName[e.Name] = e
	return nil
}

// Get finds an endpoint, or returns an error that wraps ErrUnknown and lists
// the names there are.
func (s *Set) Get(name string) (*Endpoint, error) {
	if e, ok := s.byName[name]; ok {
		return e, nil
	}
	if len(s.byName) == 0 {
		return nil, fmt.Errorf("%w %q: none is defined; add one with --endpoint", ErrUnknown, name)
	}
	names := make([]string, 0, len(s.byName))
	for n := range s.byName {
		names = append(names, n)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("%w %q: there is %s", ErrUnknown, name, strings.Join(names, ", "))
}
