package policy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
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
	} {
		tb, err := table(t, nil, rules)
		if err != nil {
			t.Fatal(err)
		}
		checkLookup(t, lookup, tb, rand.New(rand.NewPCG(2, uint64(i))))
	}
}

// checkLookup asks C and the table about the same addresses.
func checkLookup(t *testing.T, lookup string, tb *Table, random *rand.Rand) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, tb.Snapshot(func(*endpoint.Endpoint) uint64 { return 1 }), 0o600); err != nil {
		t.Fatal(err)
	}
	tos := addressesNear(tb, random)
	var in bytes.Buffer
	for _, to := range tos {
		addr := to.Addr().As16()
		in.Write(addr[:])
		in.Write(binary.BigEndian.AppendUint16(nil, to.Port()))
	}
	cmd := exec.Command(lookup, image)
	cmd.Stdin = &in
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
		if ep := tb.Egress(to); ep != nil {
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
	tb, err := table(t, nil, []string{"0.0.0.0/0=any", "10.0.0.0/8:80=a"})
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
