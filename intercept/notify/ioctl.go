package notify

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
	"github.com/tsugiki/tsugiki/internal/sys/seccomp"
	"github.com/tsugiki/tsugiki/internal/sys/tracee"
)

// ioctl(2) of a socket tells of the interfaces, addresses and neighbours of the network namespace
// that the socket is of. For a grafted socket that is the host's. So the supervisor makes the
// requests that read such data, on a socket of the container's own namespace.
//
// Time of check. A request is read from the program once, made with a copy and a file of
// ours, and then the copy is written back. The kernel never carries on with it: by then a
// thread could have put a host socket under the number. The kernel carries on only with
// requests for which it wants CAP_NET_ADMIN in the namespace of the socket that is there by
// then, which no program has in the host's, and with those that TCP and UDP do not have.

// treatment says how a request is handled.
type treatment int

const (
	unknown  treatment = iota
	proceeds           // the kernel carries on
	refused            // the kernel has it, programs do not
	reads              // reads into a struct ifreq
	maps               // likewise, of more than a sockaddr
	lists              // SIOCGIFCONF
	resolves           // reads into a struct arpreq
	points             // reads to where a struct ifreq points
)

// Requests that package unix does not name, linux/sockios.h.
const (
	siocSIFLink     = 0x8911
	siocSIFHWBcast  = 0x8937
	siocGIFBr       = 0x8940
	siocSIFBr       = 0x8941
	siocWANDev      = 0x894a
	siocGIFVlan     = 0x8982
	siocSIFVlan     = 0x8983
	siocBondFirst   = 0x8990
	siocBondSlave   = 0x8993
	siocBondInfo    = 0x8994
	siocBondActive  = 0x8995
	siocBrFirst     = 0x89a0
	siocBrLast      = 0x89a3
	siocProtocol    = 0x89e0 // to 0x89ef: those of a protocol, which TCP and UDP do not have
	siocDevice      = 0x89f0 // to 0x89ff: those of a driver
	siocDeviceLast  = 0x89ff
	siocWireless    = 0x8b00 // to 0x8bff
	siocWirelessEnd = 0x8c00
)

// treatments are those of single requests.
var treatments = map[uint32]treatment{
	unix.SIOCGIFNAME: reads, unix.SIOCGIFFLAGS: reads, unix.SIOCGIFADDR: reads, unix.SIOCGIFDSTADDR: reads,
	unix.SIOCGIFBRDADDR: reads, unix.SIOCGIFNETMASK: reads, unix.SIOCGIFMETRIC: reads, unix.SIOCGIFMEM: reads,
	unix.SIOCGIFMTU: reads, unix.SIOCGIFENCAP: reads, unix.SIOCGIFHWADDR: reads, unix.SIOCGIFSLAVE: reads,
	unix.SIOCGIFINDEX: reads, unix.SIOCGIFPFLAGS: reads, unix.SIOCGIFCOUNT: reads, unix.SIOCGIFTXQLEN: reads,
	unix.SIOCGIFMAP: maps, unix.SIOCGIFCONF: lists, unix.SIOCGARP: resolves,
	unix.SIOCETHTOOL: points, unix.SIOCGHWTSTAMP: points, siocBondSlave: points, siocBondInfo: points,

	siocSIFLink: proceeds, unix.SIOCSIFFLAGS: proceeds, unix.SIOCSIFADDR: proceeds, unix.SIOCSIFDSTADDR: proceeds,
	unix.SIOCSIFBRDADDR: proceeds, unix.SIOCSIFNETMASK: proceeds, unix.SIOCSIFMETRIC: proceeds, unix.SIOCSIFMEM: proceeds,
	unix.SIOCSIFMTU: proceeds, unix.SIOCSIFNAME: proceeds, unix.SIOCSIFHWADDR: proceeds, unix.SIOCSIFENCAP: proceeds,
	unix.SIOCSIFSLAVE: proceeds, unix.SIOCADDMULTI: proceeds, unix.SIOCDELMULTI: proceeds, unix.SIOCSIFPFLAGS: proceeds,
	unix.SIOCDIFADDR: proceeds, siocSIFHWBcast: proceeds, unix.SIOCSIFTXQLEN: proceeds, unix.SIOCSIFMAP: proceeds,
	unix.SIOCGMIIPHY: proceeds, unix.SIOCGMIIREG: proceeds, unix.SIOCSMIIREG: proceeds, unix.SIOCGSKNS: proceeds,
	unix.SIOCDARP: proceeds, unix.SIOCSARP: proceeds, unix.SIOCSHWTSTAMP: proceeds,
	siocBondFirst: proceeds, siocBondFirst + 1: proceeds, siocBondFirst + 2: proceeds, siocBondActive: proceeds,

	siocGIFBr: refused, siocSIFBr: refused, siocWANDev: refused, siocGIFVlan: refused, siocSIFVlan: refused,
}

func treatmentOf(request uint32) treatment {
	switch {
	case request >= siocBrFirst && request <= siocBrLast, request >= siocProtocol && request < siocDevice:
		return proceeds
	case request >= siocDevice && request <= siocDeviceLast, request >= siocWireless && request < siocWirelessEnd:
		return refused
	}
	return treatments[request]
}

// The sizes of struct ifreq, also for programs of a 32-bit ABI, and of struct arpreq.
const ifreqSize, ifreqNarrow, arpreqSize = 40, 32, 68

// interfaceRequest is the ioctl(2) of a program, and the file that it is made by.
type interfaceRequest struct {
	number uint32
	at     uint64 // the program's third argument
	narrow bool   // the program's words have 32 bits
	memory *tracee.Memory
	file   int
}

// ioctl answers a request about the interfaces of a socket's namespace. A fault of ours
// does not let the kernel carry on.
func (s *Supervisor) ioctl(p *program) (graft.Answer, error) {
	r := interfaceRequest{number: uint32(p.request.Args[1]), at: p.request.Args[2], narrow: p.request.Narrow}
	if r.narrow {
		r.at = uint64(uint32(r.at))
	}
	how := treatmentOf(r.number)
	if how == proceeds {
		return graft.Answer{}, nil
	}
	var failed error
	m, err := p.memory()
	if err == nil {
		defer m.Close()
		r.memory = m
		err = s.engine.Interfaces(p, p.request.Number, r.number == unix.SIOCGIFNAME, func(file int) {
			r.file = file
			failed = r.make(how)
		})
	}
	if err == nil {
		err = failed
	}
	return s.ioctlAnswer(p.request, err)
}

// ioctlAnswer is the kernel's errno where there is one.
func (s *Supervisor) ioctlAnswer(r gate.Request, err error) (graft.Answer, error) {
	var errno unix.Errno
	switch {
	case err == nil:
		return succeed(), nil
	case errors.Is(err, seccomp.ErrStale):
		return graft.Answer{}, err
	case errors.Is(err, tracee.ErrFault):
		return fail(unix.EFAULT), nil
	case errors.As(err, &errno):
		s.log.Debug("request refused", "pid", r.Thread, "syscall", r.Call, "err", err)
		return fail(errno), nil
	}
	s.log.Error("interfaces not told of", "pid", r.Thread, "syscall", r.Call, "err", err)
	return fail(unix.ENOBUFS), nil
}

// make makes the request.
func (r *interfaceRequest) make(how treatment) error {
	switch how {
	case reads:
		return r.read(r.ifreqSize())
	case resolves:
		return r.read(arpreqSize)
	case lists:
		return r.list()
	case maps:
		if !r.narrow {
			return r.read(ifreqSize)
		}
	case points:
		if !r.narrow {
			return r.readThrough()
		}
	case unknown:
		return unix.ENOTTY
	}
	return unix.EOPNOTSUPP
}

// ifreqSize is the size of the program's struct ifreq. The narrow one is as the other
// begins, but for what SIOCGIFMAP reads and for pointers.
func (r *interfaceRequest) ifreqSize() int {
	if r.narrow {
		return ifreqNarrow
	}
	return ifreqSize
}

// call makes the request with a copy of ours.
func (r *interfaceRequest) call(arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(r.file), uintptr(r.number), uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// read makes a request whose argument is so many bytes that the kernel reads and writes.
func (r *interfaceRequest) read(size int) error {
	var b [max(ifreqSize, arpreqSize)]byte
	err := r.memory.Read(r.at, b[:size])
	if err == nil {
		err = r.call(unsafe.Pointer(&b))
	}
	if err != nil {
		return err
	}
	return r.memory.Write(r.at, b[:size])
}

// ifconf is struct ifconf.
type ifconf struct {
	length int32
	buffer unsafe.Pointer
}

// list makes SIOCGIFCONF. A program that has no buffer asks for the length that it needs.
func (r *interfaceRequest) list() error {
	var length [4]byte
	b := make([]byte, 16)
	if r.narrow {
		b = b[:8]
	}
	if err := r.memory.Read(r.at, b); err != nil {
		return err
	}
	e := binary.NativeEndian
	room, to := int(int32(e.Uint32(b))), uint64(e.Uint32(b[4:]))
	if !r.narrow {
		to = e.Uint64(b[8:])
	}
	var all ifconf
	if err := r.call(unsafe.Pointer(&all)); err != nil {
		return err
	}
	count := int(all.length) / ifreqSize
	if to != 0 {
		count = min(count, max(room, 0)/r.ifreqSize())
		list := make([]byte, count*ifreqSize+1) // not empty
		all = ifconf{int32(count * ifreqSize), unsafe.Pointer(&list[0])}
		if err := r.call(unsafe.Pointer(&all)); err != nil {
			return err
		}
		count = int(all.length) / ifreqSize
		var out []byte
		for i := range count {
			out = append(out, list[i*ifreqSize:i*ifreqSize+r.ifreqSize()]...)
		}
		if err := r.memory.Write(to, out); err != nil {
			return err
		}
	}
	e.PutUint32(length[:], uint32(count*r.ifreqSize()))
	return r.memory.Write(r.at, length[:])
}
