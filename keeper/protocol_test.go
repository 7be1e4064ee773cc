package keeper

import (
	"errors"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/sys/fdpass"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
	"github.com/tsugiki/tsugiki/internal/wire"
)

func encode(r request) []byte { return wire.Append(nil, r.message()) }

// The C side's numbers and layouts are those of this package.
func TestProtocolIsTheKeepers(t *testing.T) {
	testkit.CheckC(t, "c/protocol.h", map[string]any{
		"KEEPER_VERSION":        protocolVersion,
		"KEEPER_BATCH_MAX":      batchMax,
		"KEEPER_HELLO":          opHello,
		"KEEPER_SOCKETS":        opSockets,
		"KEEPER_EPOLL_ADD":      opEpollAdd,
		"KEEPER_EPOLL_DEL":      opEpollDel,
		"KEEPER_DONE":           statusDone,
		"KEEPER_REFUSED":        statusRefused,
		"KEEPER_FAULT":          statusFault,
		"KEEPER_MALFORMED":      statusMalformed,
		"struct keeper_request": requestMessage{},
		"struct keeper_reply":   replyMessage{},
		"struct keeper_loan":    loanMessage{},
	})
}

// raw is a keeper without a client.
type raw struct {
	t   testing.TB
	cmd *exec.Cmd
	fd  int
}

func startRaw(t testing.TB, path string, cfg Config, change ...func(*exec.Cmd)) *raw {
	t.Helper()
	ours, theirs, err := fdpass.Pair("keeper control")
	if err != nil {
		t.Fatal(err)
	}
	returned, err := newEvents()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { returned.Close() })
	r := &raw{t: t, cmd: command(path, theirs, returned, cfg)}
	for _, f := range change {
		f(r.cmd)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if err := awaitHello(ours); err != nil {
		t.Error(err)
	}
	f, err := ours.File() // a blocking duplicate
	if err != nil {
		t.Fatal(err)
	}
	ours.Close()
	r.fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	tv := unix.NsecToTimeval(int64(testkit.Patience))
	if err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.fd >= 0 {
			unix.Close(r.fd)
			if err := r.cmd.Wait(); err != nil {
				t.Errorf("keeper ended badly: %v", err)
			}
		}
	})
	return r
}

func (r *raw) send(b []byte, fds []int) {
	r.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(r.fd, b, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		r.t.Fatalf("send to keeper: %v", err)
	}
}

// receive gives a reply, and the descriptors that came before it.
func (r *raw) receive() ([]byte, []int) {
	r.t.Helper()
	b, fds := r.message()
	if len(b) == 1 {
		b, _ = r.message()
	}
	return b, fds
}

func (r *raw) message() ([]byte, []int) {
	r.t.Helper()
	buf := make([]byte, 100)
	oob := make([]byte, rightsSize)
	n, oobn, _, _, err := unix.Recvmsg(r.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) { // a socket with a timeout is not restarted
		n, oobn, _, _, err = unix.Recvmsg(r.fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil || n == 0 {
		r.t.Fatalf("keeper gives no answer: %d bytes, %v", n, err)
	}
	return buf[:n], fdpass.Descriptors(oob[:oobn], nil)
}

// peek waits until there is an answer, and leaves it.
func (r *raw) peek() {
	r.t.Helper()
	for {
		_, _, _, _, err := unix.Recvmsg(r.fd, make([]byte, 1), nil, unix.MSG_PEEK)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			r.t.Fatalf("keeper gives no answer: %v", err)
		}
	}
}

func malformed() map[string]struct {
	message []byte
	fds     int
} {
	good := request{op: opSockets, tag: 9, kind: tcp, count: 1}
	change := func(f func(*request)) []byte {
		r := good
		f(&r)
		return encode(r)
	}
	version := encode(good)
	version[0]++
	return map[string]struct {
		message []byte
		fds     int
	}{
		"nothing":             {nil, 0},
		"nothing but files":   {nil, 2},
		"one byte":            {[]byte{1}, 0},
		"short":               {encode(good)[:requestSize-1], 0},
		"long":                {append(encode(good), 0), 0},
		"very long":           {make([]byte, 60000), 0},
		"version":             {version, 0},
		"op 0":                {change(func(r *request) { r.op = 0 }), 0},
		"hello":               {change(func(r *request) { r.op = opHello }), 0},
		"op 5":                {change(func(r *request) { r.op = 5 }), 0},
		"no sockets":          {change(func(r *request) { r.count = 0 }), 0},
		"65 sockets":          {change(func(r *request) { r.count = batchMax + 1 }), 0},
		"4 billion sockets":   {change(func(r *request) { r.count = 1<<32 - 1 }), 0},
		"sockets with number": {change(func(r *request) { r.number = 1 }), 0},
		"sockets with files":  {encode(good), 2},
		"epoll without files": {encode(request{op: opEpollAdd, number: 5}), 0},
		"epoll with a file":   {encode(request{op: opEpollAdd, number: 5}), 1},
		"epoll with 3 files":  {encode(request{op: opEpollAdd, number: 5}), 3},
		"epoll with 200":      {encode(request{op: opEpollAdd, number: 5}), 200},
		"epoll at -1":         {encode(request{op: opEpollAdd, number: -1}), 2},
		"epoll with count":    {encode(request{op: opEpollAdd, number: 5, count: 1}), 2},
		"delete with data":    {encode(request{op: opEpollDel, number: 5, data: 1}), 2},
	}
}

func TestMalformedRequests(t *testing.T) {
	testkit.CheckLeaks(t)
	r := startRaw(t, sanitized(t), Config{})
	for name, test := range malformed() {
		fds := make([]int, test.fds)
		r.send(test.message, fds) // 0 is as good a file as any
		b, got := r.receive()
		if _, err := parseReply(b); len(b) != replySize || status(b[8]) != statusMalformed || !errors.Is(err, errProtocol) || len(got) != 0 {
			t.Errorf("%s: answer % x with %v (%v)", name, b, got, err)
		}
		if tag := b[4]; len(test.message) == requestSize && test.fds <= 2 && tag != test.message[4] {
			t.Errorf("%s: tag %d in the answer", name, tag)
		}
	}
	r.stillServes()
}

// stillServes checks that nothing that came before had any effect.
func (r *raw) stillServes() {
	r.t.Helper()
	r.send(encode(request{op: opSockets, tag: 77, kind: udp, count: batchMax}), nil)
	b, fds := r.receive()
	closeAll(fds)
	if rep, err := parseReply(b); err != nil || rep.tag != 77 || rep.status != statusDone || len(fds) != batchMax {
		r.t.Errorf("answer % x with %d sockets (%v)", b, len(fds), err)
	}
	// At once: a socket that the program closes must be closed then.
	if files, err := testkit.OpenFiles(r.cmd.Process.Pid); err != nil || len(files) != 2 {
		r.t.Errorf("keeper holds %v after its answer (%v)", files, err)
	}
}

// Any bytes with any files get one answer each and leave nothing behind.
func TestRandomRequests(t *testing.T) {
	testkit.CheckLeaks(t)
	r := startRaw(t, sanitized(t), Config{})
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ep)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	for range 3000 {
		b := encode(request{
			op: opcode(rnd.IntN(5)), tag: rnd.Uint32(), count: uint32(rnd.IntN(70)),
			kind:   Kind{rnd.IntN(50) - 1, rnd.IntN(12), rnd.IntN(300) - 1},
			number: int32(rnd.IntN(20)),
		})
		if rnd.IntN(2) == 0 { // well formed epoll requests
			b = encode(request{op: opcode(3 + rnd.IntN(2)), number: int32(rnd.IntN(20))})
		}
		for range rnd.IntN(3) {
			b[rnd.IntN(len(b))] = byte(rnd.Uint32())
		}
		files := []int{ep, s, ep, s}[:[]int{0, 2, 2, 2, 1, 3, 4}[rnd.IntN(7)]]
		r.send(b[:len(b)-max(0, rnd.IntN(40)-35)], files)
		_, fds := r.receive()
		closeAll(fds)
	}
	r.stillServes()
}

func FuzzReply(f *testing.F) {
	f.Add(make([]byte, replySize), []byte{})
	f.Add([]byte{1, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}, unix.UnixRights(3, 4))
	f.Add([]byte{1, 0, 3, 0, 9, 0, 0, 0, 1, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, unix.UnixRights(1)[:17])
	f.Fuzz(func(t *testing.T, b, oob []byte) {
		if n := len(fdpass.Descriptors(oob, nil)); n > len(oob)/4 {
			t.Errorf("%d descriptors out of %d bytes", n, len(oob))
		}
		r, err := parseReply(b)
		if err != nil {
			if !errors.Is(err, errProtocol) {
				t.Errorf("error %v", err)
			}
			return
		}
		if r.count < 0 || r.count > batchMax || (r.count > 0 && r.op != opSockets) {
			t.Errorf("%+v: count", r)
		}
		if (r.errno == 0) != (r.status == statusDone) || r.status > statusFault {
			t.Errorf("%+v: status", r)
		}
	})
}
