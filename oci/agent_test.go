package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
)

// testAgent does the part of an agent that runtimes see: it registers containers, and answers each
// trapped call with CONTINUE.
type testAgent struct {
	dir string

	mu         sync.Mutex // guards the fields below
	answer     api.Registered
	refuse     string
	registered map[string]api.Registration
	asked      map[int32]int // calls by number
	states     []specs.ContainerProcessState
	serving    sync.WaitGroup
}

func startAgent(t *testing.T) *testAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "oci") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	a := &testAgent{dir: dir, registered: map[string]api.Registration{}, asked: map[int32]int{}}
	a.answer = api.Registered{Graft: true, Token: "secret", Listener: filepath.Join(dir, "seccomp.sock"), Filter: api.Filter{Mode: "auto"}}
	requests, err := net.Listen("unix", filepath.Join(dir, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	filters, err := net.Listen("unix", a.answer.Listener)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/containers", a.register)
	mux.HandleFunc("DELETE /v1/containers/{name}", a.unregister)
	server := &http.Server{Handler: mux}
	a.serving.Add(2)
	go func() { defer a.serving.Done(); _ = server.Serve(requests) }()
	go func() { defer a.serving.Done(); a.takeListeners(filters) }()
	t.Cleanup(func() {
		server.Close()
		filters.Close()
		a.serving.Wait()
		os.RemoveAll(dir)
	})
	return a
}

func (a *testAgent) register(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var reg api.Registration
	if err := json.NewDecoder(r.Body).Decode(&reg); err != nil || a.refuse != "" {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(api.Failure{Error: a.refuse})
		return
	}
	answer := a.answer
	answer.Name = reg.Name
	if name, is := reg.Annotations[api.AnnotationPrefix+"name"]; is { // which this agent allows
		answer.Name = name
	}
	if answer.Graft {
		a.registered[answer.Name] = reg
		w.WriteHeader(http.StatusCreated)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *testAgent) unregister(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, is := a.registered[r.PathValue("name")]; !is {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Failure{Error: "unknown"})
		return
	}
	delete(a.registered, r.PathValue("name"))
	w.WriteHeader(http.StatusNoContent)
}

// change changes the agent's answer.
func (a *testAgent) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *testAgent) asks(number int32) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[number]
}

func (a *testAgent) takeListeners(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		f, state, err := receiveListener(conn.(*net.UnixConn))
		conn.Close()
		if err != nil {
			fmt.Fprintln(os.Stderr, "test agent:", err)
			continue
		}
		a.change(func() { a.states = append(a.states, state) })
		a.serving.Add(1)
		go func() { defer a.serving.Done(); a.answerCalls(f) }()
	}
}

func receiveListener(conn *net.UnixConn) (*os.File, specs.ContainerProcessState, error) {
	var state specs.ContainerProcessState
	data, oob := make([]byte, 1<<20), make([]byte, unix.CmsgSpace(16))
	n, oobn, _, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		return nil, state, err
	}
	for !json.Valid(data[:n]) {
		more, err := conn.Read(data[n:])
		if err != nil {
			return nil, state, err
		}
		n += more
	}
	if err := json.Unmarshal(data[:n], &state); err != nil {
		return nil, state, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) == 0 {
		return nil, state, errors.New("no listener came")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, state, fmt.Errorf("%d files came: %w", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "listener"), state, nil
}

// answerCalls answers calls until their processes have ended.
func (a *testAgent) answerCalls(f *os.File) {
	defer f.Close()
	type notification struct {
		id         uint64
		pid, flags uint32
		data       struct {
			number int32
			arch   uint32
			ip     uint64
			args   [6]uint64
		}
	}
	type response struct {
		id           uint64
		value        int64
		errno, flags int32
	}
	for {
		p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); errors.Is(err, unix.EINTR) {
			continue
		}
		if p[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue
		}
		a.change(func() { a.asked[n.data.number]++ })
		r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	}
}

func (a *testAgent) names() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for name := range a.registered {
		all = append(all, name)
	}
	return strings.Join(all, " ")
}
