package graft

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/afgraft"

	"golang.org/x/sys/unix"
)

// refusedOptions reads what bpf/options.h refuses: by function, its numbers.
func refusedOptions(t *testing.T) map[int][]int {
	t.Helper()
	source, err := os.ReadFile("../bpf/options.h")
	if err != nil {
		t.Fatal(err)
	}
	levels := map[string]int{"options_refused_socket": unix.SOL_SOCKET, "options_refused_ip": unix.SOL_IP, "options_refused_ip6": unix.SOL_IPV6}
	number := regexp.MustCompile(`(?:case|name ==) (\d+)`)
	refused := map[int][]int{unix.SOL_TCP: {unix.TCP_REPAIR, unix.TCP_ULP}}
	for name, level := range levels {
		_, body, found := strings.Cut(string(source), name+"(int name)\n{")
		body, _, ended := strings.Cut(body, "\n}")
		if !found || !ended {
			t.Fatalf("no %s in bpf/options.h", name)
		}
		for _, m := range number.FindAllStringSubmatch(body, -1) {
			n, _ := strconv.Atoi(m[1])
			refused[level] = append(refused[level], n)
		}
	}
	return refused
}

// The supervisor sets nothing for a program that the kernel programs refuse.
func TestSetsNothingThatIsRefused(t *testing.T) {
	refused := refusedOptions(t)
	for level, least := range map[int]int{unix.SOL_SOCKET: 3, unix.SOL_IP: 13, unix.SOL_IPV6: 19} {
		if len(refused[level]) < least {
			t.Errorf("only %v are known of level %d", refused[level], level)
		}
	}
	for level, names := range refused {
		for _, name := range names {
			if settableByProgram(level, name) {
				t.Errorf("option %d of level %d is settable", name, level)
			}
		}
	}
}

// What the supervisor sets, it sets as one who has no privilege.
func TestSetsOptionsWithoutCapabilities(t *testing.T) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	value := func(n uint32) []byte { return native.AppendUint32(nil, n) }
	options := []afgraft.Option{
		{Level: unix.SOL_SOCKET, Name: unix.SO_PRIORITY, Value: value(7)}, // above 6 for CAP_NET_ADMIN only
		{Level: unix.SOL_SOCKET, Name: unix.SO_PRIORITY, Value: value(6)},
		{Level: unix.SOL_SOCKET, Name: unix.SO_KEEPALIVE, Value: value(1), Done: true, Result: -5},
		{Level: unix.SOL_SOCKET, Name: unix.SO_MARK, Value: value(1)},
		{Level: unix.SOL_SOCKET, Name: unix.SO_KEEPALIVE},
	}
	if err := setOptions(s, options); err != nil {
		t.Fatal(err)
	}
	for i, want := range []unix.Errno{unix.EPERM, 0, 5, unix.EPERM, unix.EINVAL} {
		if got := options[i]; !got.Done || got.Result != -int(want) {
			t.Errorf("option %d: done is %v, result %d, want %d", i, got.Done, got.Result, -int(want))
		}
	}
	for name, want := range map[int]int{unix.SO_PRIORITY: 6, unix.SO_KEEPALIVE: 0, unix.SO_MARK: 0} {
		if got, err := unix.GetsockoptInt(s, unix.SOL_SOCKET, name); got != want || err != nil {
			t.Errorf("option %d is %d, %v; want %d", name, got, err, want)
		}
	}
}
