// Package enforcer has the kernel hold a container's sockets to its rules, whatever the
// program does.
//
// Enforce compiles a policy.Table into the maps of the BPF programs and attaches the
// programs to the cgroup in which the container's host sockets are made. Adopt takes over
// what an earlier process has attached. An Enforcement also keeps, with the sockets, what
// the engine allowed each of them. The package makes no socket and decides nothing.
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

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
)

// Enforcement is a table at work in the kernel.
type Enforcement struct {
	set    *set
	cgroup uint64 // its id
	id     uint32 // the container's number in the set
	rows   *shared
	tables tables
	table  *policy.Table // in the maps
	stuck  error         // why the maps hold neither this table nor the next

	own struct {
		sync.Mutex                     // guards what follows
		row        bpf.PolicyContainer // what the programs know of the container
		attached   bool                // whether they do
	}
	named  names
	making sync.Mutex // guards tables
	close  func() error
}

// Enforce attaches the programs, with the table's rules, to the cgroup in which the
// container's host sockets are made. netnsOf gives the SO_NETNS_COOKIE of the namespace
// in which an endpoint's sockets live.
//
// They stay in force until the cgroup is gone and the last of its sockets is closed,
// whatever becomes of this process; see End.
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
	if err := e.write(e.table, netnsOf); err != nil {
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

// idOf is how the kernel calls a cgroup.
func idOf(cgroup *os.File) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(cgroup.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("identify cgroup %s: %w", cgroup.Name(), err)
	}
	return stat.Ino, nil
}

// End takes away what the programs know of a container that is no more: sockets of its
// that are still there, with whomever, are refused all that is looked at. Some of the work goes
// on after it has returned, see Settle.
func (e *Enforcement) End() {
	// What remains, the programs do not find, and it goes with the set.
	_ = e.forgetNumber()
	_ = e.rows.clear()
	e.set.use()
	ending.Add(1)
	go func() {
		defer ending.Done()
		_ = e.set.clear(e.id)
		_ = e.set.leave()
	}()
}

// ending is what End has begun.
var ending sync.WaitGroup

// Settle waits until all that End has begun is done. Of a process that ends before, tables may
// remain that nobody uses, until their set goes.
func Settle() { ending.Wait() }

// ForgetKilled does what End does for the container of a killed process, if it was this version's.
// It needs CAP_SYS_ADMIN.
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

// forgetNumber makes the cgroup one of no container, for good.
func (e *Enforcement) forgetNumber() error {
	err := e.change(func(c *bpf.PolicyContainer) { *c = bpf.PolicyContainer{} })
	e.own.Lock()
	defer e.own.Unlock()
	e.own.attached = false
	return err
}

// AllowBind lets a host socket make one bind, and tells it the name to show. It
// is to be called before the bind, by whoever makes it for the program, and again
// with the port that the kernel chose where that was 0: the binding counts only
// as long as the socket has its port.
func (e *Enforcement) AllowBind(sock int, b policy.Binding) error {
	row := bpf.PolicyBinding{
		Host:     wordsOf(b.Host.Addr()),
		View:     wordsOf(b.View.Addr()),
		HostPort: b.Host.Port(),
		ViewPort: b.View.Port(),
	}
	row.Ingress, row.Named, row.Netns, row.Call = boolByte(b.Ingress), b.Named, b.Netns, b.Call
	err := e.remember(sock, b)
	if err == nil {
		err = e.bind(sock, row)
	}
	if err != nil {
		return fmt.Errorf("allow bind to %s: %w", b.Host, err)
	}
	return nil
}

// bind notes what a socket may bind, unless it is another container's: what that one's
// supervisor has noted is in force for it.
func (e *Enforcement) bind(sock int, row bpf.PolicyBinding) error {
	var there bpf.PolicyBinding
	if err := e.set.BindingBySocket.Lookup(uint32(sock), &there); err == nil && there.Container != e.id {
		return fmt.Errorf("the socket is another container's: %w", unix.EPERM)
	}
	row.Container = e.id
	return putInSocket(e.set.BindingBySocket, sock, row)
}

// remember makes the table of those whom a UDP server may answer, before it is bound.
func (e *Enforcement) remember(sock int, b policy.Binding) error {
	if !b.Ingress {
		return nil
	}
	protocol, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_UDP {
		return err
	}
	return e.makeTable(peersTable)
}

// busyTries is how often a socket's storage is tried that another call of the
// program on the same socket keeps busy.
const busyTries = 100

func putInSocket(m *ebpf.Map, sock int, row any) (err error) {
	for range busyTries {
		if err = m.Put(uint32(sock), row); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return err
}

// Bound tells whether AllowBind was called for a host socket, and not taken back.
func (e *Enforcement) Bound(sock int) bool {
	_, found := e.binding(sock)
	return found
}

// BoundTo is what AllowBind let a host socket bind.
func (e *Enforcement) BoundTo(sock int) (netip.AddrPort, bool) {
	row, found := e.binding(sock)
	return netip.AddrPortFrom(addrOf(row.Host), row.HostPort), found
}

// BoundBy tells whether AllowBind let a host socket bind in answer to a call.
func (e *Enforcement) BoundBy(sock int, call uint64) bool {
	row, found := e.binding(sock)
	return found && row.Call == call
}

// Serve lets the container's programs reach, on their own loopback, a server
// that AllowBind let bind the host's address, in the namespace with a cookie.
func (e *Enforcement) Serve(protocol int, b policy.Binding, netns uint64) error {
	key := bpf.PolicyService{Bits: serviceBits, Container: e.id, Port: b.View.Port(), Protocol: uint8(protocol)}
	if b.Host.Addr().Unmap().Is4() {
		key.Is4 = 1
	}
	row := bpf.PolicyLocation{Addr: wordsOf(b.Host.Addr()), Port: b.Host.Port(), Netns: netns}
	if err := e.rows.services.put(key, row); err != nil {
		return fmt.Errorf("let programs reach their server at %s: %w", b.Host, err)
	}
	return nil
}

// OWNER_BITS of the BPF programs, and KEY_BITS of the keys that are looked up as a whole.
const (
	ownerBits   = 32
	numberBits  = ownerBits + 32
	serviceBits = ownerBits + 32
	senderBits  = 32
)

// Services are those that Serve was called for, by this process or an earlier one.
func (e *Enforcement) Services() ([]policy.Service, error) {
	var list []policy.Service
	for _, key := range e.rows.services.list() {
		var at bpf.PolicyLocation
		if err := e.rows.services.table.Lookup(key, &at); err != nil {
			return nil, fmt.Errorf("read services: %w", err)
		}
		list = append(list, policy.Service{
			Protocol: int(key.Protocol), Port: key.Port, Is4: key.Is4 != 0, Netns: at.Netns,
		})
	}
	return list, nil
}

// Served tells whether Serve was called for an address of the host's, or for its
// port on all addresses. Who has it by now is not known.
func (e *Enforcement) Served(protocol int, host netip.AddrPort) bool {
	for _, key := range e.rows.services.list() {
		var at bpf.PolicyLocation
		if int(key.Protocol) != protocol || e.rows.services.table.Lookup(key, &at) != nil {
			continue
		}
		any := at.Addr == wordsOf(netip.IPv6Unspecified()) || at.Addr == wordsOf(netip.IPv4Unspecified())
		if at.Port == host.Port() && (any || at.Addr == wordsOf(host.Addr())) {
			return true
		}
	}
	return false
}

// NoteAnyPort notes whether the kernel chooses the port of a socket in the container's
// own namespace, rather than the program.
func (e *Enforcement) NoteAnyPort(sock int, any bool) error {
	row, err := e.held(sock)
	if err != nil || row.AnyPort == boolToWord(any) && row.Container == e.id {
		return err
	}
	row.AnyPort, row.Container = boolToWord(any), e.id
	if err := putInSocket(e.set.HeldBySocket, sock, row); err != nil {
		return fmt.Errorf("note who chooses a socket's port: %w", err)
	}
	return nil
}

// AnyPort tells whether the kernel chose the port of a socket in the container's own
// namespace.
func (e *Enforcement) AnyPort(sock int) bool {
	row, err := e.held(sock)
	return err == nil && row.AnyPort != 0 && row.Container == e.id
}

func (e *Enforcement) held(sock int) (row bpf.PolicyHeld, err error) {
	err = e.set.HeldBySocket.Lookup(uint32(sock), &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	return row, err
}

// ForgetBind takes back what AllowBind allowed, after a bind that failed.
func (e *Enforcement) ForgetBind(sock int) error {
	if !e.Bound(sock) {
		return nil
	}
	err := e.set.BindingBySocket.Delete(uint32(sock))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget allowed bind: %w", err)
	}
	return nil
}

// BoundByIngress tells whether AllowBind let a host socket bind what a rule lets
// the container serve. It does not tell whether that was done, or undone.
func (e *Enforcement) BoundByIngress(sock int) bool {
	row, found := e.binding(sock)
	return found && row.Ingress != 0
}

func (e *Enforcement) binding(sock int) (row bpf.PolicyBinding, found bool) {
	err := e.set.BindingBySocket.Lookup(uint32(sock), &row)
	if err != nil || row.Container != e.id {
		return bpf.PolicyBinding{}, false
	}
	return row, true
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

// Connections returns how many there have been so far.
func (e *Enforcement) Connections() (policy.Connections, error) {
	n, err := e.counts()
	if err != nil {
		return policy.Connections{}, fmt.Errorf("read connections: %w", err)
	}
	return policy.Connections{Out: n.Connections[0], In: n.Connections[1]}, nil
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
	}
	return total, nil
}

// Close lets go of the programs and maps; those that are attached stay so.
func (e *Enforcement) Close() error { return e.close() }

// enforcement is one that is closed once, however often Close is called.
func enforcement(s *set, id uint32, own tables, t *policy.Table) *Enforcement {
	e := &Enforcement{set: s, id: id, rows: s.newShared(), tables: own, table: t}
	e.own.row.Id = id
	e.close = sync.OnceValue(func() error { return errors.Join(e.tables.close(), e.set.leave()) })
	return e
}

func boolToWord(b bool) uint32 { return uint32(boolByte(b)) }

func boolByte(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// addrOf undoes wordsOf.
func addrOf(w bpf.PolicyAddr) netip.Addr {
	var b [16]byte
	for i, word := range w.Word {
		binary.LittleEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b)
}

// wordsOf is an address as the programs see it: network order, IPv4 mapped.
func wordsOf(a netip.Addr) bpf.PolicyAddr {
	var w bpf.PolicyAddr
	b := a.As16()
	for i := range w.Word {
		w.Word[i] = uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
	}
	return w
}
