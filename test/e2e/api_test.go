package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// repeat is N times a byte.
type repeat struct {
	b byte
	n int64
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.n <= 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), r.n)
	for i := range p[:n] {
		p[i] = r.b
	}
	r.n -= n
	return int(n), nil
}

// Whatever is asked of it, the API answers with an error that says so, changes
// nothing and serves on.
func TestAPIHostileInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// A directory whose path fits into a struct sockaddr_un, for this client.
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := w.obey(t, dir, variants[0].flags(w)...)
	socket := filepath.Join(dir, o.name+".sock")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	here := "/v1/containers/" + o.name + "/endpoints"
	const good = `{"type":"ipv4","addr":"0.0.0.0","port":"dynamic"}`
	before := o.graft("show -j")
	for _, tt := range []struct {
		name, method, path string
		body               io.Reader
		status             int
	}{
		{"unknown field", "PUT", here + "/x", strings.NewReader(`{"type":"ipv4","addr":"0.0.0.0","port":"dynamic","mtu":1}`), 400},
		{"no JSON", "PUT", here + "/x", strings.NewReader("x type ipv4"), 400},
		{"no body", "PUT", here + "/x", nil, 400},
		{"something behind", "PUT", here + "/x", strings.NewReader(good + good), 400},
		{"words in a word", "PUT", here + "/x", strings.NewReader(`{"type":"ipv4 addr 0.0.0.0 port dynamic"}`), 400},
		{"a line in a word", "PUT", here + "/x", strings.NewReader(`{"type":"ipv4","addr":"0.0.0.0","port":"dynamic","netns":"a\nb"}`), 400},
		{"1 GB in a word", "PUT", here + "/x", io.MultiReader(strings.NewReader(`{"type":"`), &repeat{'x', 1 << 30}), 413},
		{"1 GB of space", "PUT", here + "/x", io.MultiReader(strings.NewReader(good), &repeat{' ', 1 << 30}), 413},
		{"a name that is too long", "PUT", here + "/abcdefghijklmnop", strings.NewReader(good), 400},
		{"a name with a slash", "PUT", here + "/a%2fb", strings.NewReader(good), 400},
		{"a name with a space", "PUT", here + "/a%20type", strings.NewReader(good), 400},
		{"a name with a zero", "PUT", here + "/a%00", strings.NewReader(good), 400},
		{"a name that is there", "PUT", here + "/out", strings.NewReader(good), 409},
		{"an address that is not there", "PUT", here + "/x", strings.NewReader(`{"type":"ipv4","addr":"203.0.113.99","port":"1"}`), 409},
		{"nobody's name", "DELETE", here + "/x", nil, 404},
		{"nobody's container", "GET", "/v1/containers/x/endpoints", nil, 404},
		{"nobody's container, added to", "PUT", "/v1/containers/x/endpoints/y", strings.NewReader(good), 404},
		{"another version", "GET", "/v2/containers/" + o.name + "/endpoints", nil, 404},
		{"another method", "POST", here + "/x", strings.NewReader(good), 405},
		{"another method, of all", "DELETE", here, nil, 405},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(timeout(t), tt.method, "http://tsugiki"+tt.path, tt.body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); resp.StatusCode != tt.status || err != nil {
				t.Errorf("%s: %s %v, want %d", resp.Status, body, err, tt.status)
			}
		})
	}
	for name, text := range map[string]string{
		"no HTTP": "\x00\xff\r\n\r\n", "a header that is too long": "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go io.WriteString(conn, text) //nolint:errcheck // it may be cut short
			answer, _ := io.ReadAll(conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 4") {
				t.Errorf("answered %.100q", answer)
			}
		})
	}
	if after := o.graft("show -j"); after != before {
		t.Errorf("the endpoints have changed to %s", after)
	}
	if kB := peakMemory(t, o.Process.Pid); kB > 200<<10 {
		t.Errorf("the supervisor has had up to %d kB of memory", kB)
	}
	o.release()
}

// peakMemory is the most memory that a process has had, in kB.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nVmHWM:")
	kB, _, _ := strings.Cut(rest, "kB")
	return atoi(t, kB)
}

// The socket is its owner's. Should its file be made everybody's, it still is.
func TestAPIOfOtherUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir, err := os.MkdirTemp(tmpDir, "others")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := w.obey(t, dir, variants[0].flags(w)...)
	bin := installed(t, "tsugiki")
	asNobody := func() result {
		c := command(t, w.h, filepath.Join(bin, "tsugiki"), "graft", "--run-dir", dir, "del", "out", "for", o.name)
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		return try(t, c)
	}
	for _, path := range []string{dir, filepath.Join(dir, o.name+".sock")} {
		refusal{status: 1, says: []string{"only root may do this"}}.judge(t, asNobody(), "")
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	refusal{status: 1, says: []string{fmt.Sprintf("user %d may not change endpoints", 65534)}}.judge(t, asNobody(), "")
	if text := o.graft("show"); !strings.Contains(text, "out type") {
		t.Errorf("the endpoint is gone: %q", text)
	}
	o.release()
}
