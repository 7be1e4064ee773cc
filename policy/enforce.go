package policy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/bpf"
	"github.com/tsugiki/tsugiki/endpoint"
)

// udpPeersWithoutServers is enough of a table where no rule lets the container
// bind anything.
const udpPeersWithoutServers = 64

// Enforcement is a table at work in the kernel.
type Enforcement struct {
	objs  bpf.PolicyObjects
	table *Table // in the maps
	stuck error  // why the maps hold neither this table nor the next

	named names
}

// Binding is a bind(2) that a socket is allowed to make, and the name that the
// program shall see afterwards.
type Binding struct {
	Host netip.AddrPort // what the kernel is asked for
	View netip.AddrPort // what the program asked for; port 0: whatever it got
	// Ingress marks what a rule lets the container serve. A UDP socket so
	// bound may answer whoever sent it something.
	Ingress bool
	// Named, if not 0, says that the program named the endpoint itself (AF_GRAFT):
	// the socket may connect through it too, to all that is not special, until it
	// is withdrawn. See Name.
	Named uint32
	// Netns is the cookie of that endpoint's namespace.
	Netns uint64
	// Call is the id of the bind(2) that this answers, or 0.
	Call uint64
}

// Denied counts what the kernel refused a container, by the kind of call.
type Denied struct {
	Connect, Bind, Send, SetOption uint64
}

// Enforce loads the programs with the table's rules and attaches them to the
// cgroup in which the container's host sockets are made. netnsOf gives the
// SO_NETNS_COOKIE of the namespace in which an endpoint's sockets live.
//
// The programs stay attached until the cgroup is gone and the last of its
// sockets is closed, whatever becomes of this process: they are attached by
// BPF_PROG_ATTACH, not by a link that its owner's death would undo.
func Enforce(cgroup *os.File, t *Table, netnsOf func(*endpoint.Endpoint) uint64) (*Enforcement, error) {
	spec, err := programs()
	if err != nil {
		return nil, fmt.Errorf("read policy programs: %w", err)
	}
	if len(t.ingress) == 0 {
		spec.Maps["udp_peers"].MaxEntries = udpPeersWithoutServers
	}
	// For those of two tables while one takes the other's place, see Update.
	spec.Maps["egress_by_prefix"].MaxEntries = 2 * prefixesMax
	e := &Enforcement{table: t}
	if err := spec.LoadAndAssign(&e.objs, nil); err != nil {
		return nil, fmt.Errorf("load policy programs: %w", err)
	}
	if err := e.replace(&Table{}, t, netnsOf); err != nil {
		e.Close()
		return nil, fmt.Errorf("fill policy maps: %w", err)
	}
	if err := e.keepGrafts(); err != nil {
		e.Close()
		return nil, err
	}
	if err := e.attach(cgroup); err != nil {
		e.Close()
		return nil, fmt.Errorf("attach policy programs to cgroup %s: %w", cgroup.Name(), err)
	}
	// The cgroup has them now, and they have the maps.
	if err := e.objs.PolicyPrograms.Close(); err != nil {
		e.Close()
		return nil, fmt.Errorf("let go of policy programs: %w", err)
	}
	return e, nil
}

// parsed is the object, which takes longer to read than to load.
var parsed = sync.OnceValues(bpf.LoadPolicy)

// programs are those of the object, for the caller to change.
func programs() (*ebpf.CollectionSpec, error) {
	spec, err := parsed()
	if err != nil {
		return nil, err
	}
	return spec.Copy(), nil
}

func (e *Enforcement) attach(cgroup *os.File) error {
	for _, p := range hooks(&e.objs.PolicyPrograms) {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{
			Target:  int(cgroup.Fd()),
			Program: p.program,
			Attach:  p.at,
			Flags:   flagAllowMulti,
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.at, err)
		}
	}
	return nil
}

// hook is where a program is attached.
type hook struct {
	program *ebpf.Program
	at      ebpf.AttachType
}

func hooks(p *bpf.PolicyPrograms) []hook {
	return []hook{
		{p.Connect4, ebpf.AttachCGroupInet4Connect},
		{p.Connect6, ebpf.AttachCGroupInet6Connect},
		{p.Bind4, ebpf.AttachCGroupInet4Bind},
		{p.Bind6, ebpf.AttachCGroupInet6Bind},
		{p.Sendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		{p.Sendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
		{p.Recvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		{p.Recvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		{p.Getsockname4, ebpf.AttachCgroupInet4GetSockname},
		{p.Getsockname6, ebpf.AttachCgroupInet6GetSockname},
		{p.Setsockopt, ebpf.AttachCGroupSetsockopt},
		{p.GuardListen, ebpf.AttachCGroupSockOps},
	}
}

// flagAllowMulti is BPF_F_ALLOW_MULTI: programs that others have attached to
// this cgroup or above it stay in force too.
const flagAllowMulti = 2

// AllowBind lets a host socket make one bind, and tells it the name to show. It
// is to be called before the bind, by whoever makes it for the program, and again
// with the port that the kernel chose where that was 0: the binding counts only
// as long as the socket has its port.
func (e *Enforcement) AllowBind(sock int, b Binding) error {
	row := bpf.PolicyBinding{
		Host:     wordsOf(b.Host.Addr()),
		View:     wordsOf(b.View.Addr()),
		HostPort: b.Host.Port(),
		ViewPort: b.View.Port(),
	}
	row.Ingress, row.Named, row.Netns, row.Call = boolByte(b.Ingress), b.Named, b.Netns, b.Call
	if err := putInSocket(e.objs.BindingBySocket, sock, row); err != nil {
		return fmt.Errorf("allow bind to %s: %w", b.Host, err)
	}
	return nil
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
func (e *Enforcement) Serve(protocol int, b Binding, netns uint64) error {
	key := bpf.PolicyService{Port: b.View.Port(), Protocol: uint8(protocol)}
	if b.Host.Addr().Unmap().Is4() {
		key.Is4 = 1
	}
	row := bpf.PolicyLocation{Addr: wordsOf(b.Host.Addr()), Port: b.Host.Port(), Netns: netns}
	if err := e.objs.LocationByService.Put(key, row); err != nil {
		return fmt.Errorf("let programs reach their server at %s: %w", b.Host, err)
	}
	return nil
}

// Service is a port that Serve was called for, as the container's programs know it.
type Service struct {
	Protocol int
	Port     uint16
	Is4      bool
	Netns    uint64 // cookie of the namespace where it is
}

// Services are those that Serve was called for, by this process or an earlier one.
func (e *Enforcement) Services() ([]Service, error) {
	var list []Service
	var key bpf.PolicyService
	var at bpf.PolicyLocation
	rows := e.objs.LocationByService.Iterate()
	for rows.Next(&key, &at) {
		list = append(list, Service{int(key.Protocol), key.Port, key.Is4 != 0, at.Netns})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read services: %w", err)
	}
	return list, nil
}

// Served tells whether Serve was called for an address of the host's, or for its
// port on all addresses. Who has it by now is not known.
func (e *Enforcement) Served(protocol int, host netip.AddrPort) bool {
	var key bpf.PolicyService
	var at bpf.PolicyLocation
	for rows := e.objs.LocationByService.Iterate(); rows.Next(&key, &at); {
		any := at.Addr == wordsOf(netip.IPv6Unspecified()) || at.Addr == wordsOf(netip.IPv4Unspecified())
		if int(key.Protocol) == protocol && at.Port == host.Port() && (any || at.Addr == wordsOf(host.Addr())) {
			return true
		}
	}
	return false
}

// ForgetBind takes back what AllowBind allowed, after a bind that failed.
func (e *Enforcement) ForgetBind(sock int) error {
	err := e.objs.BindingBySocket.Delete(uint32(sock))
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
	err := e.objs.BindingBySocket.Lookup(uint32(sock), &row)
	return row, err == nil
}

// optionsProof is OPTIONS_PROOF of bpf/options.h.
const optionsProof = 0x7473

// ErrNotEnforced says that a socket was made where no policy is in force.
var ErrNotEnforced = errors.New("socket is not policed: its maker has been moved out of its cgroup")

// Prove returns nil if the programs police a host socket.
func (e *Enforcement) Prove(sock int) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(sock), unix.SOL_IP, optionsProof, 0, 0, 0)
	if errno != unix.EPERM {
		return ErrNotEnforced
	}
	return nil
}

// Denied returns what the kernel has refused the container so far.
func (e *Enforcement) Denied() (Denied, error) {
	var n [4]uint64
	if err := sum(e.objs.Denials, n[:]); err != nil {
		return Denied{}, fmt.Errorf("read denials: %w", err)
	}
	return Denied{n[0], n[1], n[2], n[3]}, nil
}

// Connections counts the TCP connections of the container's host sockets that
// were established, by who began.
type Connections struct {
	Out, In uint64
}

// Connections returns how many there have been so far.
func (e *Enforcement) Connections() (Connections, error) {
	var n [2]uint64
	if err := sum(e.objs.Connections, n[:]); err != nil {
		return Connections{}, fmt.Errorf("read connections: %w", err)
	}
	return Connections{n[0], n[1]}, nil
}

// sum adds up the counters of all CPUs.
func sum(m *ebpf.Map, counts []uint64) error {
	for kind := range counts {
		var perCPU []uint64
		if err := m.Lookup(uint32(kind), &perCPU); err != nil {
			return err
		}
		for _, n := range perCPU {
			counts[kind] += n
		}
	}
	return nil
}

// Close lets go of the programs and maps; those that are attached stay so.
func (e *Enforcement) Close() error { return e.objs.Close() }

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
