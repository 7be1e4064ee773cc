package figures

import (
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tsugiki/tsugiki/density/rig"
)

// addVersion adds the first line that a program prints about its version. It adds nothing if that
// is unknown.
func addVersion(tools map[string]string, name string, command ...string) {
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err == nil && line != "" {
		tools[name] = line
	}
}

// networkTools checks that the programs for the networks are installed, and returns their versions.
func networkTools(list []variant) (map[string]string, error) {
	tools := make(map[string]string)
	if !has(list, rig.Bridge) {
		return tools, nil
	}
	plugins, err := rig.FindPlugins()
	if err != nil {
		return nil, err
	}
	addVersion(tools, "CNI plugins", filepath.Join(plugins, "bridge"), "--version")
	addVersion(tools, "iptables", "iptables", "--version")
	return tools, nil
}
