package enforcer

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
)

// tables are the tables of one container.
type tables struct {
	senders *ebpf.Map // all nil until they are needed
	peers   *ebpf.Map
	ring    *ebpf.Map
	hosts   *ebpf.Map
	virtual *ebpf.Map // the way back of hosts
}

func (t *tables) all() []**ebpf.Map {
	return []**ebpf.Map{&t.senders, &t.peers, &t.ring, &t.hosts, &t.virtual}
}

func (t *tables) close() error {
	var errs []error
	for _, m := range t.all() {
		errs = append(errs, (*m).Close())
	}
	return errors.Join(errs...)
}

// outer returns the maps that contain the containers' tables, in the order of tables.all.
func (s *set) outer() []*ebpf.Map {
	return []*ebpf.Map{s.SenderTables, s.PeerTables, s.TraceTables, s.HostTables, s.VirtualTables}
}

// tableSpecs has the specs of these tables, in the same order. To read them from the object takes
// longer than all else that a container needs.
var tableSpecs = []*ebpf.MapSpec{
	{
		Name: "sender_tables_inner", Type: ebpf.LPMTrie, MaxEntries: relaySendersMax, Flags: unix.BPF_F_NO_PREALLOC,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicySender{})), ValueSize: uint32(unsafe.Sizeof(bpf.PolicyAddr{})),
	},
	{
		Name: "peer_tables_inner", Type: ebpf.LRUHash, MaxEntries: udpPeersMax,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicyPeer{})), ValueSize: 1,
	},
	{Name: "trace_tables_inner", Type: ebpf.RingBuf, MaxEntries: traceBytes},
	{
		Name: "host_tables_inner", Type: ebpf.LPMTrie, MaxEntries: virtualHosts, Flags: unix.BPF_F_NO_PREALLOC,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicyVirtualAddr{})), ValueSize: uint32(unsafe.Sizeof(bpf.PolicyVirtualHost{})),
	},
	{
		Name: "virtual_tables_inner", Type: ebpf.Hash, MaxEntries: virtualHosts, Flags: unix.BPF_F_NO_PREALLOC,
		KeySize: uint32(unsafe.Sizeof(bpf.PolicyAddr{})), ValueSize: 4,
	},
}

// RELAY_SENDERS_MAX, UDP_PEERS_MAX and VIRTUAL_HOSTS of the BPF programs.
const (
	relaySendersMax = 4096
	udpPeersMax     = 4096
	virtualHosts    = 1 << 17
)

// Indexes of tables in tables.all.
const (
	sendersTable = 0
	peersTable   = 1
	traceTable   = 2
	hostsTable   = 3
	virtualTable = 4
)

// makeTable makes a table of a container, unless the container has it. The programs see the table
// when makeTable returns.
func (e *Enforcement) makeTable(kind int) error {
	e.making.Lock()
	defer e.making.Unlock()
	table := e.tables.all()[kind]
	if *table != nil {
		return nil
	}
	m, err := ebpf.NewMap(tableSpecs[kind])
	if err != nil {
		return err
	}
	if err := e.enter(e.set.outer()[kind], m); err != nil {
		return errors.Join(err, m.Close())
	}
	*table = m
	return nil
}

// enter puts a table into a map of tables. The kernel does so at once, but its call returns only
// after all running programs have ended (8 to 16 ms). No caller here has to wait for that.
func (e *Enforcement) enter(outer, table *ebpf.Map) error {
	done := make(chan error, 1)
	e.entering.Add(1)
	go func() {
		defer e.entering.Done()
		done <- outer.Put(placeOf(e.id), table)
	}()
	for {
		var there ebpf.MapID
		err := outer.Lookup(placeOf(e.id), &there)
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		select {
		case err := <-done:
			return err
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// placeOf returns a container's index in the maps of tables of its set.
func placeOf(id uint32) uint32 { return id % containersMax }

// openTables opens the tables that exist for a container.
func (s *set) openTables(id uint32) (t tables, err error) {
	list := t.all()
	for i, outer := range s.outer() {
		err := outer.Lookup(placeOf(id), list[i])
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			continue
		case err == nil:
			err = tableSpecs[i].Compatible(*list[i])
		}
		if err != nil {
			return tables{}, errors.Join(fmt.Errorf("%w: %w", ErrNotAdopted, err), t.close())
		}
	}
	return t, nil
}

// clear removes the tables of a container. It takes a grace period for each table.
func (s *set) clear(id uint32) error {
	var errs []error
	for _, outer := range s.outer() {
		var there ebpf.MapID
		if err := outer.Lookup(placeOf(id), &there); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err := outer.Delete(placeOf(id)); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
