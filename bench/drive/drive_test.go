package drive

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/bench/netdrive"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

func TestDecode(t *testing.T) {
	s, err := Decode([]byte(`{"test":"tcp_rr","ops":10,"bytes":20,"seconds":0.5,"p50_us":7.5}`))
	if err != nil || s.Ops != 10 || s.Seconds != 0.5 || s.P50 != 7.5 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, line := range []string{"", "{}", `{"ops":0,"bytes":0,"seconds":1}`} {
		if _, err := Decode([]byte(line)); err == nil {
			t.Errorf("Decode(%q) gives no error", line)
		}
	}
}

// TestDriver runs every test of netdrive over IPv6 in a namespace.
func TestDriver(t *testing.T) {
	testkit.Program(t, "gcc")
	driver, err := netdrive.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{})
	for _, test := range Tests {
		t.Run(test.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			address := []string{test.Name, testkit.RemoteAddr6.String(), "7000", "-s", "100"}
			server := top.Remote.Command(ctx, driver, append([]string{"server"}, address...)...)
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = server.Process.Kill()
				_ = server.Wait() // killed
			}()
			if err := top.Remote.WaitListen(ctx, test.Network, 7000); err != nil {
				t.Fatal(err)
			}
			out, err := top.Host.Command(ctx, driver, append([]string{"client"}, append(address, "-t", "0.1", "-w", "0.05")...)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			s, err := Decode(out)
			if err != nil {
				t.Fatal(err)
			}
			// It counts until 0.1 s have passed, however long that takes.
			if s.Seconds < 0.1 || s.TotalBytes <= s.Bytes || s.P50 <= 0 || s.P99 < s.P50 || s.Connect <= 0 {
				t.Errorf("not plausible: %s", out)
			}
		})
	}
}

func TestDriverFails(t *testing.T) {
	testkit.Program(t, "gcc")
	ctx := context.Background()
	driver, err := netdrive.Build(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	top := testkit.Build(t, testkit.Options{})
	out, err := top.Host.Command(ctx, driver, "client", "tcp_rr", testkit.RemoteAddr4.String(), "7001").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "connect: Connection refused") {
		t.Errorf("no server: %v, %s", err, out)
	}
	err = exec.Command(driver, "client", "tcp_rr", "nowhere", "1").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("wrong usage: %v, want exit status 2", err)
	}
}
