package filter

import (
	"testing"

	"golang.org/x/sys/unix"
)

// siocGIWName is the first request of linux/wireless.h that anybody may make.
const siocGIWName = 0x8b01

// A profile's regions say of each request the same as our own program, and each request
// is in one of them.
func TestInterfaceTrapIsWhole(t *testing.T) {
	prog, err := Build("amd64", Options{})
	if err != nil {
		t.Fatal(err)
	}
	trapped := interfaceTrap()
	in := func(rs []region, request uint64) (n int) {
		for _, r := range rs {
			if r[ioctlRequest].contains(request) {
				n++
			}
		}
		return n
	}
	for request := range uint64(1 << 16) {
		asked, passed := in(trapped.regions, request), in(trapped.pass, request)
		if asked+passed != 1 {
			t.Fatalf("request %#x is in %d regions", request, asked+passed)
		}
		own := evaluate(t, prog, seccompData{archX8664, natives["amd64"].numbers[ioctl], [6]uint64{3, request}})
		if (own == ask) != (asked == 1) {
			t.Fatalf("request %#x: our own program says %#x, %d of the regions ask", request, own, asked)
		}
	}
}

// A request that is not about interfaces costs few instructions.
func TestOtherIoctlsAreCheap(t *testing.T) {
	prog, err := Build("amd64", Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for i, in := range prog {
		if in == load(offArgs+8*ioctlRequest) && prog[i+1].Code == unix.BPF_ALU|unix.BPF_AND|unix.BPF_K && prog[i+1].K == interfaceTypes {
			at = i
			break
		}
	}
	if at < 0 {
		t.Fatal("the program does not look at requests")
	}
	// Load, mask, compare; then allow.
	if next := prog[at+2]; prog[at+3+int(next.Jf)] != ret(allow) {
		t.Errorf("what has another type is looked at again: %+v", prog[at+3+int(next.Jf)])
	}
}
