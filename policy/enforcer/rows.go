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

// In the tables that containers share, a row's key has the number of the container whose
// it is. The keys of each container's rows are kept here: so it finds its own, has no more
// than it may, and takes all of them away in the end.

// What one container may have, as the BPF programs' constants of these names say.
const (
	namedMax    = 1024
	servicesMax = 4096
)

// errNoRoom says that a container has as many rows of a kind as it may have.
var errNoRoom = errors.New("no room for another")

// rows are those of one container in one table.
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

// note adds a row that is there. With mu held.
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

// setTable makes another handle of the table the one that is used.
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

// list are the keys of the rows that are there, in any order.
func (r *rows[K]) list() []K {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.keys))
}

// clear deletes rows that list has given.
func (r *rows[K]) clear(keys []K) error {
	var errs []error
	for _, key := range keys {
		errs = append(errs, r.delete(key))
	}
	return errors.Join(errs...)
}

// shared are the rows of one container in the tables that it shares.
type shared struct {
	egress    rows[bpf.PolicyPrefix]
	endpoints rows[bpf.PolicyNumber]
	names     rows[bpf.PolicyNumber]
	services  rows[bpf.PolicyService]
}

// newShared is a container without any.
func (s *set) newShared() *shared {
	return &shared{
		// Twice, for those of two tables while one takes the other's place.
		egress:    rows[bpf.PolicyPrefix]{table: s.EgressByPrefix, most: 2 * policy.PrefixesMax},
		endpoints: rows[bpf.PolicyNumber]{table: s.EndpointByNumber, most: policy.EndpointsMax},
		names:     rows[bpf.PolicyNumber]{table: s.NameByNumber, most: namedMax},
		services:  rows[bpf.PolicyService]{table: s.LocationByService, most: servicesMax},
	}
}

// prefixes are those that have rows, the shortest first: if they are deleted in this
// order, whoever finds one finds the one that was in force.
func (r *shared) prefixes() []bpf.PolicyPrefix {
	prefixes := r.egress.list()
	slices.SortFunc(prefixes, func(a, b bpf.PolicyPrefix) int { return cmp.Compare(a.Bits, b.Bits) })
	return prefixes
}

// clear takes all of them away.
func (r *shared) clear() error {
	return errors.Join(
		r.egress.clear(r.prefixes()),
		r.services.clear(r.services.list()),
		r.names.clear(r.names.list()),
		r.endpoints.clear(r.endpoints.list()),
	)
}

// findShared finds those that another process has written for a container. All are read at
// once, as who takes over one container mostly takes over the others too; a container that
// is taken over again is not among those that are left.
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

// foundOnLoopback are the rows of a loopback that findShared has found.
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
