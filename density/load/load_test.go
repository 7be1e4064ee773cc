package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

func program(t *testing.T) string {
	return filepath.Join(testkit.BuildTsugiki(t), Program)
}

// command prepares the program, which ends with the test.
func command(t *testing.T, args ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), program(t), args...)
}

func output(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := command(t, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, stderr.Bytes())
	}
	return out
}

// residual returns the sum of squares of iteration k. It computes the iterations in double
// precision, without the known solution.
func residual(x, y, z, iterations int) float64 {
	grid := func() [][][]float64 {
		g := make([][][]float64, x)
		for i := range g {
			g[i] = make([][]float64, y)
			for j := range g[i] {
				g[i][j] = make([]float64, z)
			}
		}
		return g
	}
	wave := func(i, n int) float64 { return math.Sin(math.Pi * float64(i) / float64(n-1)) }
	value := func(n int) float64 { return 2 - 2*math.Cos(math.Pi/float64(n-1)) }
	u, next, sum := grid(), grid(), 0.0
	for range iterations {
		sum = 0
		for i := 1; i < x-1; i++ {
			for j := 1; j < y-1; j++ {
				for k := 1; k < z-1; k++ {
					f := -(value(x) + value(y) + value(z)) * wave(i, x) * wave(j, y) * wave(k, z)
					v := (u[i-1][j][k] + u[i+1][j][k] + u[i][j-1][k] + u[i][j+1][k] + u[i][j][k-1] + u[i][j][k+1] - f) / 6
					sum += (v - u[i][j][k]) * (v - u[i][j][k])
					next[i][j][k] = v
				}
			}
		}
		u, next = next, u
	}
	return sum
}

func TestStencilComputes(t *testing.T) {
	for _, g := range [][4]int{{4, 4, 4, 1}, {12, 9, 21, 40}, {20, 20, 20, 256}, {17, 33, 8, 25}} {
		got, err := ParseStencil(output(t, "stencil", "-g", fmt.Sprintf("%dx%dx%d", g[0], g[1], g[2]), "-i", strconv.Itoa(g[3])))
		if err != nil {
			t.Fatal(err)
		}
		if want := residual(g[0], g[1], g[2], g[3]); math.Abs(got.Residual-want) > 1e-4*want {
			t.Errorf("%v: residual %g, want %g", g, got.Residual, want)
		}
		if got.Iterations != g[3] {
			t.Errorf("%v: %d iterations", g, got.Iterations)
		}
	}
}

func TestStencilCounts(t *testing.T) {
	got, err := ParseStencil(output(t, Stencil(time.Second)...))
	if err != nil {
		t.Fatal(err)
	}
	if got.Seconds < 1 {
		t.Errorf("computed for %v s, want 1 at least", got.Seconds)
	}
	want := 62 * 62 * 126 * 10 * float64(got.Iterations) / got.Seconds / 1e6
	if math.Abs(got.MFLOPS-want) > 0.001*want {
		t.Errorf("%v MFLOPS, want %v", got.MFLOPS, want)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{
		"", "nothing", "idle 1", "serve", "serve 0", "serve 1 2", "at", "at file", "stencil -g 3x4x4", "stencil -g 4x4", "stencil -g 4x4x4x4", "stencil -i 0",
		"stencil -s 1h", "stencil 4", "web", "web 127.0.0.1:80", "web -n 1", "web -n 1 localhost:80", "web -n 1 127.0.0.1",
		"web -n 1 127.0.0.1:0", "web -n 1 127.0.0.1:65536", "web -n -1 127.0.0.1:80",
	} {
		var exit *exec.ExitError
		err := command(t, strings.Fields(args)...).Run()
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("%q: %v, want exit status 2", args, err)
		}
	}
}

func TestWebAsksAllServers(t *testing.T) {
	var servers []string
	hits := make([]int, 3) // each written by its server's one client
	for i := range hits {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			hits[i]++
			fmt.Fprint(w, strings.Repeat("x", 5000))
		}))
		t.Cleanup(s.Close)
		servers = append(servers, s.Listener.Addr().String())
	}
	got, err := ParseWeb(output(t, Web(300, 7, servers...)...))
	if err != nil {
		t.Fatal(err)
	}
	if got.Failed != 0 || len(got.Took) != 300 {
		t.Errorf("%d of %d failed", got.Failed, len(got.Took))
	}
	sum := 0.0
	for _, ms := range got.Took {
		sum += ms / 1000
	}
	if sum > got.Seconds {
		t.Errorf("requests took %v s of %v s", sum, got.Seconds)
	}
	if want := drawn(300, 7, len(hits)); !slices.Equal(hits, want) {
		t.Errorf("the servers were asked %v times, want %v", hits, want)
	}
}

// drawn is how often each server is drawn with a seed: by splitmix64, from the seed without
// its last bit (Web).
func drawn(requests int, seed uint64, servers int) []int {
	times := make([]int, servers)
	seed >>= 1
	for range requests {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
		z = (z ^ (z >> 27)) * 0x94d049bb133111eb
		times[(z^(z>>31))%uint64(servers)]++
	}
	return times
}

func TestServe(t *testing.T) {
	ns := testkit.NewLoopback(t) // in which nobody else has the port
	server := command(t, Serve(8080)...)
	stdout, err := server.StdoutPipe()
	if err == nil {
		err = ns.Do(server.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != Ready+"\n" {
		t.Fatalf("said %q, %v", line, err)
	}
	var out []byte
	err = ns.Do(func() (err error) {
		out, err = command(t, Web(50, 1, "127.0.0.1:8080")...).Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseWeb(out)
	if err != nil || got.Failed != 0 {
		t.Errorf("%d requests failed, %v", got.Failed, err)
	}
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// A wrong or incomplete answer counts as a failed request.
func TestWebFails(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":    "",
		"no status":  "hello, this is no HTTP at all",
		"not found":  "HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\nx",
		"no body":    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"no end":     "HTTP/1.1 200 OK\r\nContent-Type: text/plain",
		"only start": "HTTP/1.1 2",
	} {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = bufio.NewReader(c).ReadString('\n')
				fmt.Fprint(c, answer)
				c.Close()
			}
		}()
		got, err := ParseWeb(output(t, Web(2, 1, l.Addr().String())...))
		if err != nil || got.Failed != 2 || len(got.Took) != 0 {
			t.Errorf("%s: %+v, %v, want 2 failures", name, got, err)
		}
	}
}

func TestBarrier(t *testing.T) {
	file := filepath.Join(t.TempDir(), "barrier")
	b, err := NewBarrier(file)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := NewBarrier(file); err == nil {
		t.Error("a file was taken for a barrier that is somebody's")
	}
	for range 3 { // it may be used again
		var programs []*exec.Cmd
		var printed [8]bytes.Buffer
		for i := range printed {
			cmd := command(t, At(file, "date", "+%s%N")...)
			cmd.Stdout = &printed[i]
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			programs = append(programs, cmd)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		err := b.Await(ctx, len(programs))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for _, cmd := range programs {
			atBarrier(t, cmd.Process.Pid)
		}
		opened := time.Now().UnixNano()
		if err := b.Open(); err != nil {
			t.Fatal(err)
		}
		for i, cmd := range programs {
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			began, err := strconv.ParseInt(strings.TrimSpace(printed[i].String()), 10, 64)
			if err != nil || began < opened {
				t.Errorf("program %d has begun at %d, before %d: %v", i, began, opened, err)
			}
		}
	}
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := b.Await(short, 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "0 of 1") {
		t.Errorf("waiting for nobody: %v", err)
	}
}

// atBarrier waits until a process sleeps at a barrier: in futex(2), and what it is to run has
// not begun. Await may return just before that.
func atBarrier(t *testing.T, pid int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		call, cerr := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if err := errors.Join(err, cerr); err != nil {
			return err
		}
		if string(comm) != Program+"\n" || !strings.HasPrefix(string(call), fmt.Sprint(syscall.SYS_FUTEX, " ")) {
			return fmt.Errorf("process %d is %q in the call %s", pid, comm, call)
		}
		return nil
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"mflops":2,"iterations":1,"seconds":0.002573,"residual":0.05,"expected":0.05}`))
	f.Add([]byte(`{"failed":0,"seconds":0.5,"took_ns":[1000,2000]}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		if r, err := ParseStencil(out); err == nil && (r.MFLOPS <= 0 || r.Iterations <= 0 || r.Seconds <= 0) {
			t.Errorf("%+v", r)
		}
		for _, parse := range []func([]byte) (WebResult, error){ParseWeb, ParseAB} {
			if r, err := parse(out); err == nil && (r.Seconds <= 0 || len(r.Took)+r.Failed <= 0) {
				t.Errorf("%+v", r)
			}
		}
	})
}
