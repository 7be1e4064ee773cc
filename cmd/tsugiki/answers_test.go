package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// answers is an agent that answers from a folder. For a request such as GET /v1/charge it
// reads the file GET_v1_charge.N at the N-th such request, or else GET_v1_charge. Its first
// line is the status, the rest the body. Without a file, the answer is 404.
//
// It appends a line METHOD PATH BODY for each request to the file requests in the folder.
type answers struct {
	dir    string
	mu     sync.Mutex
	counts map[string]int // requests so far, by name of file; guarded by mu
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = a.note(strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL.EscapedPath(), body)))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	name := r.Method + strings.ReplaceAll(r.URL.Path, "/", "_")
	a.counts[name]++
	data, err := os.ReadFile(filepath.Join(a.dir, fmt.Sprintf("%s.%d", name, a.counts[name])))
	if err != nil {
		data, err = os.ReadFile(filepath.Join(a.dir, name))
	}
	if err != nil {
		data = []byte("404\n{\"error\": \"no such container\", \"unknown\": [\"x\"]}")
	}
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	status, err := strconv.Atoi(string(bytes.TrimSpace(first)))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		_, _ = w.Write(rest) // the client sees what is missing
	}
}

// note appends a line to the file requests.
func (a *answers) note(line string) error {
	f, err := os.OpenFile(filepath.Join(a.dir, "requests"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// serveAnswers is the command agent of scripts.
func serveAnswers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: agent SOCKET DIR")
	}
	l, err := net.Listen("unix", ts.MkAbs(args[0]))
	ts.Check(err)
	s := &http.Server{Handler: &answers{dir: ts.MkAbs(args[1]), counts: map[string]int{}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // it returns when the script ends
	}()
	ts.Defer(func() {
		_ = s.Close()
		<-done
	})
}
