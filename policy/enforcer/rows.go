package enforcer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/policy"
)

// In the tables that containers share, a row's key has the number of the row's container. This file
// keeps the keys of each container's rows. So a container finds its rows, stays within its limits,
// and deletes all rows in the end.

// The limits of one container: the BPF programs' constants of these names.
const (
	namedMax    = 1024
	servicesMax = 4096
)

// errNoRoom says that a container has reached its limit of rows of a kind.
var errNoRoom = errors.New("no room for another")

// rows are the rows of one container in one table.
type rows[K comparable] struct {
	table *ebpf.Map
	most  int

	mu   sync.Mutex // guards what follows
	keys map[K]struct{}
}

func (r *rows[K]) put(key K, value any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, there := r.keys[key]; !there && len(r.keys) >= r.most {
		return fmt.Errorf("%w: there are %d", errNoRoom, len(r.keys))
	}
	if err := r.table.Put(key, value); err != nil {
		return err
	}
	r.note(key)
	return nil
}

// note adds the key of an existing row. The caller holds mu.
func (r *rows[K]) note(key K) {
	if r.keys == nil {
		r.keys = map[K]struct{}{}
	}
	r.keys[key] = struct{}{}
}

// delete deletes a row, if it is there.
func (r *rows[K]) delete(key K) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.table.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	delete(r.keys, key)
	return nil
}

func (r *rows[K]) lookup(key K, value any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.Lookup(key, value)
}

// setTable replaces the handle of the table.
func (r *rows[K]) setTable(table *ebpf.Map) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table = table
}

func (r *rows[K]) count(which func(K) bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.keys {
		if which(key) {
			n++
		}
	}
	return n
}

// list returns the keys of the rows, in any order.
func (r *rows[K]) list() []K {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.keys))
}

// clear deletes rows that list has returned.
func (r *rows[K]) clear(keys []K) error {
	var errs []error
	for _, key := range keys {
		errs = append(errs, r.delete(key))
	}
	return errors.Join(errs...)
}

// shared has the rows of one container in the tables that containers share.
type shared struct {
	egress    rows[bpf.PolicyPrefix]
	endpoints rows[bpf.PolicyNumber]
	names     rows[bpf.PolicyNumber]
	services  rows[bpf.PolicyService]
	sources   rows[bpf.PolicySource]
}

// newShared returns the rows of a container without any.
func (s *set) newShared() *shared {
	return &shared{
		// Twice the limit, because the rows of two policy tables are there while one replaces the
		// other.
		egress:    rows[bpf.PolicyPrefix]{table: s.EgressByPrefix, most: 2 * policy.PrefixesMax},
		endpoints: rows[bpf.PolicyNumber]{table: s.EndpointByNumber, most: policy.EndpointsMax},
		names:     rows[bpf.PolicyNumber]{table: s.NameByNumber, most: namedMax},
		services:  rows[bpf.PolicyService]{table: s.LocationByService, most: servicesMax},
		sources:   rows[bpf.PolicySource]{table: s.VerdictBySource, most: 2 * policy.SourcesMax},
	}
}

// prefixes returns the prefixes with rows, the shortest first. If they are deleted in this order, a
// program that finds a row finds the one that was in force.
func (r *shared) prefixes() []bpf.PolicyPrefix {
	prefixes := r.egress.list()
	slices.SortFunc(prefixes, func(a, b bpf.PolicyPrefix) int { return cmp.Compare(a.Bits, b.Bits) })
	return prefixes
}

// clear deletes all rows.
func (r *shared) clear() error {
	return errors.Join(
		r.egress.clear(r.prefixes()),
		r.services.clear(r.services.list()),
		r.names.clear(r.names.list()),
		r.sources.clear(r.sources.list()),
		r.endpoints.clear(r.endpoints.list()),
	)
}

// findShared finds the rows that another process has written for a container. It reads the rows of
// all containers at once, because a process that takes over one container mostly takes over the
// others too. A container that is taken over again is not among the remaining ones.
func (s *set) findShared(id uint32) (*shared, error) {
	s.finding.Lock()
	defer s.finding.Unlock()
	if s.found[id] == nil {
		var err error
		if s.found, err = s.readShared(); err != nil {
			return nil, err
		}
	}
	r := s.found[id]
	delete(s.found, id)
	if r == nil {
		return nil, fmt.Errorf("%w: container %d has no rows", ErrNotAdopted, id)
	}
	return r, nil
}

// foundOnLoopback returns the rows of a loopback that findShared has found.
func (s *set) foundOnLoopback(id uint32) []bpf.PolicyService {
	s.finding.Lock()
	defer s.finding.Unlock()
	if s.found[id] == nil {
		return nil
	}
	return s.found[id].services.list()
}

// readShared reads the rows of all containers of a set.
func (s *set) readShared() (map[uint32]*shared, error) {
	found := map[uint32]*shared{}
	of := func(id uint32) *shared {
		if found[id] == nil {
			found[id] = s.newShared()
		}
		return found[id]
	}
	err := errors.Join(
		eachKey(s.EgressByPrefix, func(k bpf.PolicyPrefix) { of(k.Container).egress.note(k) }),
		eachKey(s.EndpointByNumber, func(k bpf.PolicyNumber) { of(k.Container).endpoints.note(k) }),
		eachKey(s.NameByNumber, func(k bpf.PolicyNumber) { of(k.Container).names.note(k) }),
		eachKey(s.LocationByService, func(k bpf.PolicyService) { of(k.Owner).services.note(k) }),
		eachKey(s.VerdictBySource, func(k bpf.PolicySource) { of(k.Container).sources.note(k) }),
		eachKey(s.LocationByLoopback, func(k bpf.PolicyService) { of(k.Owner).services.note(k) }),
	)
	if err != nil {
		return nil, fmt.Errorf("read policy maps: %w", err)
	}
	return found, nil
}

// eachKey calls fn with each key. Rows that others delete meanwhile may make it begin again.
func eachKey[K any](m *ebpf.Map, fn func(K)) error {
	var key K
	err := m.NextKey(nil, &key)
	for ; err == nil; err = m.NextKey(key, &key) {
		fn(key)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
