package filter

import "golang.org/x/sys/unix"

// Audit architecture tokens, linux/audit.h.
const (
	archX8664   = unix.AUDIT_ARCH_X86_64
	archI386    = unix.AUDIT_ARCH_I386
	archAarch64 = unix.AUDIT_ARCH_AARCH64
	archArm     = unix.AUDIT_ARCH_ARM
)

// x32Bit marks the system calls of the x32 ABI, which share AUDIT_ARCH_X86_64.
const x32Bit = 0x40000000

// socketcallListen is SYS_LISTEN of linux/net.h, the first argument of
// socketcall(2).
const socketcallListen = 4

// ioUringSetup has this number in every ABI.
const ioUringSetup = 425

// Call is a system call that the supervisor is asked about.
type Call int

// The calls. SocketcallListen is listen(2) by way of i386's socketcall(2), whose
// second argument points to the arguments.
const (
	Socket Call = iota + 1
	Connect
	Bind
	Listen
	SendTo
	SendMsg
	SendMMsg
	SocketcallListen
)

func (c Call) String() string {
	switch c {
	case Socket:
		return "socket"
	case Connect:
		return "connect"
	case Bind:
		return "bind"
	case Listen, SocketcallListen:
		return "listen"
	case SendTo:
		return "sendto"
	case SendMsg:
		return "sendmsg"
	case SendMMsg:
		return "sendmmsg"
	}
	return "unknown call"
}

// native are the system calls of a 64-bit ABI.
type native struct {
	token   uint32
	numbers map[Call]uint32
}

var natives = map[string]native{
	"amd64": {archX8664, map[Call]uint32{
		Socket: 41, Connect: 42, Bind: 49, Listen: 50, SendTo: 44, SendMsg: 46, SendMMsg: 307,
	}},
	"arm64": {archAarch64, map[Call]uint32{
		Socket: 198, Connect: 203, Bind: 200, Listen: 201, SendTo: 206, SendMsg: 211, SendMMsg: 269,
	}},
}

// foreign are the calls by which a program of another ABI could open a host
// socket to the world behind the supervisor's back. All else that such a
// program does stays in its own namespace, or is the kernel programs' to judge.
var foreign = map[string][]rule{
	"amd64": {
		{token: archX8664, number: x32Bit | 50, call: Listen},
		{token: archI386, number: 363, call: Listen},
		{token: archI386, number: 102, call: SocketcallListen, only: []cond{{arg: 0, op: equal, value: socketcallListen}}},
	},
	"arm64": {
		{token: archArm, number: 284, call: Listen},
	},
}

// callKey is what a notification says of a call.
type callKey struct {
	token, number uint32
}

var calls = func() map[callKey]Call {
	m := map[callKey]Call{}
	for goarch, n := range natives {
		for call, number := range n.numbers {
			m[callKey{n.token, number}] = call
		}
		for _, r := range foreign[goarch] {
			m[callKey{r.token, r.number}] = r.call
		}
	}
	return m
}()

// Lookup tells which call a notification is about.
func Lookup(token uint32, number int32) (Call, bool) {
	call, known := calls[callKey{token, uint32(number)}]
	return call, known
}
