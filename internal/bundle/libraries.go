package bundle

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// absolute are the paths in what ldd prints.
var absolute = regexp.MustCompile(`(?m)(?:^\t|=> )(/\S+) \(0x`)

// Libraries lists what a program loads; nothing if it is static. It asks ldd, which runs
// the program's loader.
func Libraries(program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w", program, err)
	}
	defer f.Close()
	dynamic := false
	for _, p := range f.Progs {
		dynamic = dynamic || p.Type == elf.PT_INTERP
	}
	if !dynamic {
		return nil, nil
	}
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w", program, err)
	}
	if strings.Contains(string(out), "not found") {
		return nil, fmt.Errorf("find the libraries of %s: one is missing: %s", program, strings.TrimSpace(string(out)))
	}
	var list []string
	for _, found := range absolute.FindAllSubmatch(out, -1) {
		list = append(list, string(found[1]))
	}
	return list, nil
}
