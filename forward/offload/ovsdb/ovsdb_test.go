package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// server is a real ovsdb-server.
type server struct {
	t   *testing.T
	dir string
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t, t.TempDir()}
	s.run("ovsdb-tool", "create", s.dir+"/conf.db", "/usr/share/openvswitch/vswitch.ovsschema")
	s.run("ovsdb-server", s.dir+"/conf.db", "--remote=punix:"+s.dir+"/db.sock", "--detach", "--no-chdir",
		"--pidfile="+s.dir+"/pid", "--unixctl="+s.dir+"/ctl", "--log-file="+s.dir+"/log")
	t.Cleanup(func() { s.run("ovs-appctl", "-t", s.dir+"/ctl", "exit") })
	return s
}

func (s *server) run(program string, args ...string) {
	s.t.Helper()
	if out, err := exec.Command(testkit.Program(s.t, program), args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v: %s", program, err, out)
	}
}

func (s *server) connect() *Client {
	s.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(s.dir, "db.sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	c := NewClient(conn)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// A monitor follows what transactions do, of others too; a lock is one client's, and an assertion
// without it does nothing.
func TestServer(t *testing.T) {
	s := newServer(t)
	a, b := s.connect(), s.connect()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	do := func(c *Client, ops ...Operation) []Result {
		t.Helper()
		results, err := c.Transact(ctx, ops...)
		if err != nil {
			t.Fatal(err)
		}
		return results
	}
	do(a, Insert("Open_vSwitch", "root", map[string]any{}))
	m, err := b.Monitor(ctx, map[string][]string{"Bridge": {"name", "external_ids", "ports"}})
	if err != nil {
		t.Fatal(err)
	}
	awaits := func(what string, is func(rows map[string]Row) bool) {
		t.Helper()
		for !is(m.Rows("Bridge")) {
			select {
			case <-m.News():
			case <-ctx.Done():
				t.Fatalf("%s: the monitor has %v", what, m.Rows("Bridge"))
			}
		}
	}
	do(a, Insert("Bridge", "new", map[string]any{"name": "br0", "external_ids": MapOf(map[string]string{"key": "a b"})}),
		Mutate("Open_vSwitch", []Condition{}, Condition{"bridges", "insert", SetOf(Named("new"))}))
	awaits("insert", func(rows map[string]Row) bool { return len(rows) == 1 })
	for id, row := range m.Rows("Bridge") {
		ids, err := row.Map("external_ids")
		if name, nerr := row.String("name"); errors.Join(err, nerr) != nil || name != "br0" || ids["key"] != "a b" {
			t.Errorf("row %s, %v, %v", row, err, nerr)
		}
		if list, err := row.UUIDs("ports"); err != nil || list != nil {
			t.Errorf("ports %v, %v", list, err)
		}
		do(a, Mutate("Bridge", Equal("_uuid", UUID(id)), Condition{"external_ids", "delete", SetOf("key")}))
	}
	awaits("mutate", func(rows map[string]Row) bool {
		for _, row := range rows {
			ids, _ := row.Map("external_ids")
			return len(ids) == 0
		}
		return false
	})
	got := do(b, Select("Bridge", Equal("name", "br0"), "name", "_uuid"))
	if len(got[0].Rows) != 1 {
		t.Errorf("select gives %v", got)
	}

	if has, err := a.TryLock(ctx, "lock"); !has || err != nil {
		t.Fatalf("lock: %v, %v", has, err)
	}
	if has, err := b.TryLock(ctx, "lock"); has || err != nil {
		t.Errorf("a second client has the lock: %v, %v", has, err)
	}
	_, err = b.Transact(ctx, Assert("lock"), Mutate("Open_vSwitch", []Condition{}, Condition{"bridges", "delete", SetOf()}))
	var refused *TransactionError
	if !errors.As(err, &refused) || refused.Operation != 0 {
		t.Errorf("assert without the lock: %v", err)
	}
	do(a, Assert("lock"), Update("Open_vSwitch", []Condition{}, map[string]any{"bridges": SetOf()}))
	awaits("delete", func(rows map[string]Row) bool { return len(rows) == 0 })
	other := s.connect()
	for _, lock := range []string{"lock", "free"} { // of which it keeps none
		for range 2 {
			if held, err := other.Held(ctx, lock); held != (lock == "lock") || err != nil {
				t.Errorf("%s is held: %v, %v", lock, held, err)
			}
		}
	}
	if has, err := b.TryLock(ctx, "free"); !has || err != nil {
		t.Errorf("a lock that was held for a moment: %v, %v", has, err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if has := <-b.Locked("lock"); !has {
		t.Error("the second client was told that it has no lock")
	}
	if _, err := a.Transact(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := b.Transact(ctx, Insert("Nothing", "n", nil)); !errors.As(err, &refused) {
		t.Errorf("unknown table: %v", err)
	}
}

// answers is a server that answers each request with a text, in which ID is the request's.
func answers(t *testing.T, text string) *Client {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		d := json.NewDecoder(far)
		for {
			var m message
			if d.Decode(&m) != nil {
				return
			}
			if _, err := fmt.Fprint(far, strings.ReplaceAll(text, "ID", string(m.ID))); err != nil {
				return
			}
		}
	}()
	c := NewClient(near)
	t.Cleanup(func() { c.Close() })
	return c
}

// A server that says nonsense is an error, and no hang.
func TestNonsense(t *testing.T) {
	for text, want := range map[string]string{
		`{"id":ID,"result":[{}],"error":null}`:                                             "",
		`{"id":ID,"result":[],"error":null}`:                                               "fewer results",
		`{"id":ID,"result":[null],"error":null}`:                                           "fewer results",
		`{"id":ID,"result":7,"error":null}`:                                                "read results",
		`{"id":ID,"result":[{"error":"constraint violation"}],"error":null}`:               "constraint violation",
		`{"id":ID,"result":null,"error":"unknown database"}`:                               "unknown database",
		`{"id":"x","result":[{}],"error":null}`:                                            "no such id",
		`[1]`:                                                                              "ended",
		`{"method":"update","params":[1]}`:                                                 "update of tables",
		`{"method":"update","params":[null,{"T":{"u":7}}]}`:                                "update of tables",
		`{"method":"locked","params":["a","b"]}`:                                           "news of a lock",
		`{"id":9,"result":1}{"method":"echo","id":"x","params":[]}{"id":ID,"result":[{}]}`: "",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		_, err := answers(t, text).Transact(ctx, Assert("x"))
		cancel()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	big := &limited{r: strings.NewReader(strings.Repeat(" ", 100)), left: 10}
	if err := json.NewDecoder(big).Decode(new(int)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large message: %v", err)
	}
}

// FuzzRow reads values of a server as every type.
func FuzzRow(f *testing.F) {
	for _, seed := range []string{`"x"`, `7`, `["uuid","a"]`, `["set",[]]`, `["set",["a","b"]]`, `["map",[["a","b"]]]`, `["map",[["a"]]]`, `null`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := Row{"c": text}
		m, err := r.Map("c")
		if err == nil && m == nil {
			t.Error("no map and no error")
		}
		_, _ = r.String("c")
		_, _ = r.Int("c")
		_, _ = r.UUID("c")
		_, _ = r.UUIDs("c")
		_, _ = r.Strings("c")
		c := &Client{monitor: &Monitor{rows: map[string]map[string]Row{}, news: make(chan struct{}, 1)}, locked: map[string]chan bool{}, waiting: map[uint64]chan answer{}}
		_ = c.update(text)
		_ = c.lockChanged(text, true)
		_ = c.answer(&message{ID: text})
	})
}
