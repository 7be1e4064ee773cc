package policy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/policy"
	"github.com/tsugiki/tsugiki/policy/policytest"
)

// buildLookup compiles the C side with a driver around it.
func buildLookup(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler: cc")
	}
	bin := filepath.Join(t.TempDir(), "lookup")
	out, err := exec.Command(cc, "-O1", "-g", "-fsanitize=address,undefined", "-Wall", "-Werror", "-o", bin,
		"testdata/lookup.c", "c/rules.c").CombinedOutput()
	if err != nil {
		t.Fatalf("build lookup: %v\n%s", err, out)
	}
	return bin
}

// C programs find in the snapshot what the table says.
func TestSnapshotAgreesWithTable(t *testing.T) {
	lookup := buildLookup(t)
	for i, rules := range [][]string{
		nil,
		{"0.0.0.0/0=any", "::/0=six"},
		{"0.0.0.0/0=any", "127.0.0.1:53=a", "10.0.0.9:80=un"},
		{"10.0.0.0/8=any", "10.1.0.0/16:80-90=a", "10.1.2.0/23:1-1000=b", "2001:db8::/33=six", "[2001:db8:2::/47]:443=six"},
		{"0.0.0.0/0=any", "10.0.0.0/8/udp=a", "10.1.0.0/16:80/tcp=b"},
	} {
		tb, err := policytest.Table(t, nil, rules)
		if err != nil {
			t.Fatal(err)
		}
		checkLookup(t, lookup, tb, rand.New(rand.NewPCG(2, uint64(i))))
	}
}

// destinations are what the C side reads.
func destinations(tos ...netip.AddrPort) *bytes.Buffer {
	var in bytes.Buffer
	for _, to := range tos {
		addr := to.Addr().As16()
		in.Write(addr[:])
		in.Write(binary.BigEndian.AppendUint16(nil, to.Port()))
	}
	return &in
}

// checkLookup asks C and the table about the same addresses.
func checkLookup(t *testing.T, lookup string, tb *policy.Table, random *rand.Rand) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, tb.Snapshot(func(*endpoint.Endpoint) uint64 { return 1 }), 0o600); err != nil {
		t.Fatal(err)
	}
	var tos, asked []netip.AddrPort
	for _, to := range policytest.AddressesNear(tb, random) {
		if tb.EgressRule(0, to).Protocol != 0 {
			asked = append(asked, to) // of who knows the protocol
		} else {
			tos = append(tos, to)
		}
	}
	for _, to := range asked[:min(len(asked), 3)] {
		cmd := exec.Command(lookup, image)
		cmd.Stdin = destinations(to)
		if out, err := cmd.Output(); err == nil {
			t.Errorf("%s: C says %s, and knows no protocol", to, out)
		}
	}
	cmd := exec.Command(lookup, image)
	cmd.Stdin = destinations(tos...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("lookup: %v", err)
	}
	answers := strings.Fields(string(out))
	if len(answers) != len(tos) {
		t.Fatalf("%d answers to %d destinations", len(answers), len(tos))
	}
	for j, to := range tos {
		want := -1
		if ep := tb.Egress(0, to); ep != nil {
			want = slices.Index(tb.Numbered(), ep)
		}
		if answers[j] != fmt.Sprint(want) {
			t.Errorf("%s: C says %s, the table %d", to, answers[j], want)
		}
	}
}

// A snapshot that is cut or changed where it counts is noticed.
func TestBrokenSnapshot(t *testing.T) {
	lookup := buildLookup(t)
	tb, err := policytest.Table(t, nil, []string{"0.0.0.0/0=any", "10.0.0.0/8:80=a"})
	if err != nil {
		t.Fatal(err)
	}
	good := tb.Snapshot(func(*endpoint.Endpoint) uint64 { return 1 })
	change := func(offset int, to uint32) []byte {
		b := bytes.Clone(good)
		binary.NativeEndian.PutUint32(b[offset:], to)
		return b
	}
	// One for each prefix: 1.2.3.4:1, which is looked for in all that are longer
	// than the default route, and 10.0.0.1:80.
	destinations := []byte{
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4, 0, 1,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, 0, 80,
	}
	for name, image := range map[string][]byte{
		"empty":         nil,
		"cut":           good[:len(good)-1],
		"magic":         change(0, 1),
		"version":       change(4, 9),
		"prefixes":      change(8, 1<<30),
		"prefix length": change(24+16, 129),
		"first range":   change(24+20, 1<<31),
		"range count":   change(24+24, 1<<31),
		"endpoint":      change(len(good)-4, 77),
	} {
		file := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(file, image, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(lookup, file)
		cmd.Stdin = bytes.NewReader(destinations)
		if err := cmd.Run(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// Later tables lead where a fresh one would, in Go and in the image for C.
func TestNextAgreesWithSnapshot(t *testing.T) {
	lookup := buildLookup(t)
	eps := map[string]*endpoint.Endpoint{"a": policytest.Fresh(t, "a", 1), "b": policytest.Fresh(t, "b", 2)}
	first, err := policy.NewTable(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	gone := slices.Index(first.Numbered(), eps["a"])
	delete(eps, "a")
	eps["c"], eps["e"] = policytest.Fresh(t, "c", 3), policytest.Fresh(t, "e", 5)
	tb, err := first.Next(nil, policytest.RulesOf(t, policytest.UpdateRules, eps))
	if err != nil {
		t.Fatal(err)
	}
	if tb.Numbered()[gone] != nil {
		t.Fatalf("endpoints %v: the number of one that is gone is used at once", tb.Numbered())
	}
	checkLookup(t, lookup, tb, rand.New(rand.NewPCG(4, 0)))
}
