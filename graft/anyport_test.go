package graft

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/keeper"
)

func TestParseAnyPorts(t *testing.T) {
	for _, tt := range []struct {
		local, reserved string
		want            *anyPorts // nil: an error
	}{
		{"32768\t60999\n", "\n", &anyPorts{endpoint.PortRange{First: 32768, Last: 60999}, nil}},
		{"1 65535", "8080,9000-9010\n", &anyPorts{endpoint.PortRange{First: 1, Last: 65535}, []endpoint.PortRange{
			{First: 8080, Last: 8080}, {First: 9000, Last: 9010},
		}}},
		{"", "", nil},
		{"1 2 3", "", nil},
		{"2 1", "", nil},
		{"1 65536", "", nil},
		{"-1 2", "", nil},
		{"1 2", "1-2-3", nil},
		{"1 2", "x", nil},
		{"1 2", "-", nil},
	} {
		got, err := parseAnyPorts(tt.local, tt.reserved)
		if tt.want == nil {
			if err == nil {
				t.Errorf("%q %q: %v", tt.local, tt.reserved, got)
			}
			continue
		}
		if diff := cmp.Diff(*tt.want, got, cmp.AllowUnexported(anyPorts{})); err != nil || diff != "" {
			t.Errorf("%q %q: %v\n%s", tt.local, tt.reserved, err, diff)
		}
	}
	any := anyPorts{reserved: []endpoint.PortRange{{First: 8, Last: 9}, {First: 80, Last: 80}}}
	for port, want := range map[uint16]bool{7: false, 8: true, 9: true, 10: false, 80: true} {
		if any.reserves(port) != want {
			t.Errorf("port %d: reserved is %v", port, !want)
		}
	}
}

func TestStride(t *testing.T) {
	for _, size := range []int{1, 2, 5, 7919, 2 * 7919, 28232, 65535} {
		seen := make([]bool, size)
		for i := range size {
			seen[i*stride(size)%size] = true
		}
		for port, is := range seen {
			if !is {
				t.Fatalf("of %d ports, %d is never tried", size, port)
			}
		}
	}
}

// What is bound to any port on the host keeps that port on the container's loopback, whatever
// ports are taken there.
func TestAnyPortIsKept(t *testing.T) {
	host, own := newPlace(t, host4), newPlace(t)
	for _, p := range []*fakePlace{host, own} {
		if err := p.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40007"), 0)
		}); err != nil {
			t.Fatal(err)
		}
	}
	for port := 40000; port < 40007; port++ {
		file, err := own.Socket(keeper.Kind{Family: ip4, Type: tcp})
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(file)
		if err := unix.Bind(file, &unix.SockaddrInet4{Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, host, own, false, everywhere...)
	number := w.socket(host, ip4, tcp)
	if answer, err := w.Bind(w.program, number, addr("0.0.0.0:0")); err != nil || answer != succeeded {
		t.Fatal(answer, err)
	}
	place, before := w.at()
	if _, err := w.Connect(w.program, number, addr("127.0.0.1:80")); err != nil {
		t.Fatal(err)
	}
	if at, after := w.at(); place != "host" || at != "own" || before != after {
		t.Errorf("%v in %s, then %v in %s", before, place, after, at)
	}
}
