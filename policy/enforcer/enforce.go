// Package enforcer makes the kernel enforce a container's rules on its sockets, whatever the
// program does.
//
// Enforce compiles a policy.Table into the maps of the BPF programs and attaches the programs to
// the cgroup in which the container's host sockets are made. Adopt takes over what an earlier
// process has attached. An Enforcement also stores, with each socket, what the engine allowed it.
// The package makes no socket and decides nothing.
//
// It needs CAP_BPF and CAP_NET_ADMIN, for Adopt also CAP_SYS_ADMIN, and Linux 5.15.
package enforcer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Enforcement is a table that is in force in the kernel.
type Enforcement struct {
	set    *set
	cgroup uint64 // its id
	id     uint32 // the container's number in the set
	rows   *shared
	tables tables
	table  *policy.Table // in the maps
	stuck  error         // why the maps hold neither the old table nor the new one

	own struct {
		sync.Mutex                     // guards what follows
		row        bpf.PolicyContainer // the container's row, which the programs read
		attached   bool                // whether the programs can find the row
	}
	named  names
	opened opened
	// pods is AdmitPods' netnsOf; nil: it was not called. Guarded by opened.mu.
	pods func(uid string) (uint64, bool)
	// sources has the rows that this process has written, with whether they admit. Guarded likewise.
	sources map[bpf.PolicySource]bool
	// looksUp says that LookUpSources was called. Guarded likewise.
	looksUp bool
	// The container's loopback on the host, or nil. It is set before the container has a program.
	loopback   *loopback
	loopbackID uint32
	datagrams  atomic.Pointer[Datagrams] // nil: its UDP is not translated
	making     sync.Mutex                // guards tables
	entering   sync.WaitGroup            // tables whose entering has not returned yet
	close      func() error
}

// Enforce attaches the programs, with the table's rules, to the cgroup in which the
// container's host sockets are made. netnsOf gives the SO_NETNS_COOKIE of the namespace
// in which an endpoint's sockets live.
//
// They stay in force until the cgroup is gone and the last of its sockets is closed, even if this
// process ends; see End.
func Enforce(cgroup *os.File, t *policy.Table, netnsOf func(*endpoint.Endpoint) uint64) (*Enforcement, error) {
	cgroupID, err := idOf(cgroup)
	if err != nil {
		return nil, err
	}
	s, number, err := takeNumber()
	if err != nil {
		return nil, err
	}
	e := enforcement(s, number, tables{}, t)
	e.cgroup = cgroupID
	if err = e.begin(cgroup, netnsOf); err != nil {
		e.End()
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Enforcement) begin(cgroup *os.File, netnsOf func(*endpoint.Endpoint) uint64) error {
	e.opened.mu.Lock()
	err := e.write(e.table, netnsOf)
	e.opened.mu.Unlock()
	if err != nil {
		return fmt.Errorf("fill policy maps: %w", err)
	}
	if err := e.set.attach(cgroup); err != nil {
		return fmt.Errorf("attach policy programs to cgroup %s: %w", cgroup.Name(), err)
	}
	// The cgroup has its storage now. Until the container's number is there, all is refused.
	e.own.attached = true
	if err := e.change(func(*bpf.PolicyContainer) {}); err != nil {
		return fmt.Errorf("number container of cgroup %s: %w", cgroup.Name(), err)
	}
	return nil
}

// idOf returns the kernel's id of a cgroup.
func idOf(cgroup *os.File) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(cgroup.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("identify cgroup %s: %w", cgroup.Name(), err)
	}
	return stat.Ino, nil
}

// End removes the data of an ended container from the programs' maps. If any process still has
// sockets of the container, the programs refuse all their calls and packets that they check. Some
// of the work goes on after End has returned, see Settle.
func (e *Enforcement) End() {
	// The programs do not find what remains, and it goes with the set.
	_ = e.forgetNumber()
	if e.leaveLoopback(true) {
		_ = e.clearLoopback()
	}
	e.leaveMark()
	e.opened.end()
	_ = e.rows.clear()
	e.set.use()
	done := ending.begin()
	go func() {
		defer done()
		_ = e.set.clear(e.id)
		_ = e.set.leave()
	}()
}

// pending is work that begins at any time, also while somebody waits for the work before: a sync.WaitGroup would panic
// then.
type pending struct{ work sync.RWMutex } // is held for reading by the work

// begin begins some work. The caller calls done once, at its end.
func (p *pending) begin() (done func()) {
	p.work.RLock()
	return p.work.RUnlock
}

// wait waits until all work that has begun is done.
func (p *pending) wait() {
	p.work.Lock()
	p.work.Unlock() //nolint:staticcheck // all of it is done
}

// ending is the work that End has begun.
var ending pending

// Settle waits until all work that End has begun is done. If the process ends before, unused tables
// may remain until their set goes.
func Settle() { ending.wait() }

// ForgetKilled does the work of End for the container of a killed process of this version. It needs
// CAP_SYS_ADMIN.
func ForgetKilled(cgroup *os.File) error {
	e, err := adopt(cgroup, nil)
	if errors.Is(err, ErrNotAdopted) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget policy of cgroup %s: %w", cgroup.Name(), err)
	}
	e.End()
	return e.Close()
}

// forgetNumber takes the container's number from the cgroup, for good.
func (e *Enforcement) forgetNumber() error {
	err := e.change(func(c *bpf.PolicyContainer) { *c = bpf.PolicyContainer{} })
	e.own.Lock()
	defer e.own.Unlock()
	e.own.attached = false
	return err
}

// optionsProof is OPTIONS_PROOF of bpf/options.h.
const optionsProof = 0x7473

// ErrNotEnforced says that a socket was made where no policy is in force.
var ErrNotEnforced = errors.New("socket is not policed: its maker has been moved out of its cgroup")

// Cgroup is the id of the cgroup in which the container's host sockets are made.
func (e *Enforcement) Cgroup() uint64 { return e.cgroup }

// Prove returns nil if the programs police a host socket.
func (e *Enforcement) Prove(sock int) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(sock), unix.SOL_IP, optionsProof, 0, 0, 0)
	if errno != unix.EPERM {
		return ErrNotEnforced
	}
	return nil
}

// Denied returns what the kernel has refused the container so far.
func (e *Enforcement) Denied() (policy.Denied, error) {
	n, err := e.counts()
	if err != nil {
		return policy.Denied{}, fmt.Errorf("read denials: %w", err)
	}
	d := n.Denials
	return policy.Denied{Connect: d[0], Bind: d[1], Send: d[2], SetOption: d[3], Leave: d[4], Enter: d[5]}, nil
}

// Connections returns the numbers of connections so far.
func (e *Enforcement) Connections() (policy.Connections, error) {
	n, err := e.counts()
	if err != nil {
		return policy.Connections{}, fmt.Errorf("read connections: %w", err)
	}
	return policy.Connections{Out: n.Connections[0], In: n.Connections[1]}, nil
}

// Decided returns the number of calls about which the programs alone have decided so far. It is 0
// unless the container's loopback is on the host.
func (e *Enforcement) Decided() (policy.Decided, error) {
	n, err := e.counts()
	if err != nil {
		return policy.Decided{}, fmt.Errorf("read decisions: %w", err)
	}
	return policy.Decided{Connect: n.Decided[0], Send: n.Decided[1], Listen: n.Decided[2], Unreported: n.Unreported}, nil
}

// counts adds up the counters of all CPUs.
func (e *Enforcement) counts() (total bpf.PolicyCounts, err error) {
	var perCPU []bpf.PolicyCounts
	if err := e.set.CountsByCgroup.Lookup(e.cgroup, &perCPU); err != nil {
		return total, err
	}
	for _, n := range perCPU {
		for i := range n.Denials {
			total.Denials[i] += n.Denials[i]
		}
		for i := range n.Connections {
			total.Connections[i] += n.Connections[i]
		}
		for i := range n.Decided {
			total.Decided[i] += n.Decided[i]
		}
		total.Unreported += n.Unreported
	}
	return total, nil
}

// Close lets go of the programs and maps. Attached ones stay attached.
func (e *Enforcement) Close() error { return e.close() }

// enforcement returns an Enforcement that is closed once, however often Close is called.
func enforcement(s *set, id uint32, own tables, t *policy.Table) *Enforcement {
	e := &Enforcement{set: s, id: id, rows: s.newShared(), tables: own, table: t, sources: map[bpf.PolicySource]bool{}}
	e.own.row.Id = id
	e.close = sync.OnceValue(func() error {
		e.leaveLoopback(false)
		e.leaveMark()
		return errors.Join(e.tables.close(), e.set.leave())
	})
	return e
}

func boolToWord(b bool) uint32 { return uint32(boolByte(b)) }

func boolByte(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// addrOf is the inverse of wordsOf.
func addrOf(w bpf.PolicyAddr) netip.Addr {
	var b [16]byte
	for i, word := range w.Word {
		binary.LittleEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b)
}

// wordsOf returns an address in the programs' form: network order, IPv4 mapped.
func wordsOf(a netip.Addr) bpf.PolicyAddr {
	var w bpf.PolicyAddr
	b := a.As16()
	for i := range w.Word {
		w.Word[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	return w
}
