package endpoint

import (
	"fmt"
	"maps"
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
	return nil, fmt.Errorf("%w %q: there is %s", ErrUnknown, name, strings.Join(s.names(), ", "))
}

// Remove takes an endpoint out of the set. A name that is not there is an error
// that wraps ErrUnknown.
func (s *Set) Remove(name string) error {
	if _, err := s.Get(name); err != nil {
		return err
	}
	delete(s.byName, name)
	return nil
}

// Clone is a set of the same endpoints that changes by itself.
func (s *Set) Clone() Set { return Set{maps.Clone(s.byName)} }

// All are the endpoints, by name.
func (s *Set) All() []*Endpoint {
	var all []*Endpoint
	for _, n := range s.names() {
		all = append(all, s.byName[n])
	}
	return all
}

func (s *Set) names() []string { return slices.Sorted(maps.Keys(s.byName)) }
