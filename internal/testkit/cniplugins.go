package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// CNIPlugins returns a folder with the standard network plugins of tools/cni/go.mod, and cnitool,
// which calls plugins. It builds them, once per process.
var CNIPlugins = sync.OnceValues(func() (string, error) {
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache/cni")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make folder for network plugins: %w", err)
	}
	folder, err := os.Open(dir)
	if err != nil {
		return "", fmt.Errorf("lock network plugins: %w", err)
	}
	defer folder.Close()
	if err := lock.Wait(folder); err != nil {
		return "", fmt.Errorf("lock network plugins: %w", err)
	}
	mod := filepath.Join(root, "tools/cni/go.mod")
	text, err := os.ReadFile(mod)
	if err != nil {
		return "", fmt.Errorf("list network plugins: %w", err)
	}
	args := []string{"build", "-modfile=" + mod, "-o", dir + "/"}
	for word := range strings.FieldsSeq(string(text)) {
		if strings.Contains(word, "/plugins/plugins/") || strings.HasSuffix(word, "/cnitool") {
			args = append(args, word)
		}
	}
	build := exec.Command("go", args...)
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build network plugins: %w\n%s", err, out)
	}
	return dir, nil
})
