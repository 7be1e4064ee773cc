package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// gitServer is a httpd that serves documents/../repo.git, with nothing in it, to
// read and to write.
func gitServer(t *testing.T) apache {
	t.Helper()
	core, err := exec.Command(testkit.Program(t, "git"), "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := filepath.Join(strings.TrimSpace(string(core)), "git-http-backend")
	repos := openDir(t)
	a := newApache(t, "event",
		"SetEnv GIT_PROJECT_ROOT "+repos,
		"SetEnv GIT_HTTP_EXPORT_ALL 1",
		"SetEnv GIT_CONFIG_NOSYSTEM 1",
		"SetEnv HOME "+repos,
		"ScriptAlias /git/ "+backend+"/",
		`<Directory "`+filepath.Dir(backend)+`">`, "Require all granted", "</Directory>")
	repo := filepath.Join(repos, "repo.git")
	script := `git init -q --bare -b main "$1" && git -C "$1" config http.receivepack true && chown -R "$2" "$1"`
	c := exec.Command("sh", "-e", "-c", script, "sh", repo, fmt.Sprintf("%d:%d", nobody, nobody))
	c.Env = gitEnv(repos)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return a
}

// gitEnv is an environment in which git knows nothing of this machine's user.
func gitEnv(home string) []string {
	return append(os.Environ(), "HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
}

// gitScript clones URL $1 into $2, pushes a large and a small file, clones it
// again and compares.
const gitScript = `
cd "$2"
git clone -q "$1" first 2>/dev/null # warns that it is empty
head -c 3000000 /dev/urandom >first/large
echo small >first/small
git -C first add .
git -C first commit -q -m files
git -C first push -q origin HEAD:main
git clone -q "$1" second
cmp first/large second/large
cat second/small
git -C second fetch -q
git -C second rev-list --count origin/main
`

// TestGit clones and pushes over HTTP.
func TestGit(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "apache2")
	check := func(t *testing.T, c *testkit.Cmd) {
		t.Helper()
		c.Env = gitEnv(t.TempDir())
		if out := succeed(t, c); out != "small\n1\n" {
			t.Errorf("printed %q", out)
		}
	}
	url := func(addr string) string { return fmt.Sprintf("http://%s:%d/git/repo.git", addr, apachePort) }
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		t.Run("server", func(t *testing.T) {
			a := gitServer(t)
			a.serve(t, w.h, v.program(t, w, []int{apachePort}, a.line()...))
			check(t, command(t, w.srv, "sh", "-e", "-c", gitScript, "sh", url(hostAddr4), t.TempDir()))
			checkAllFrom(t, a.clients(t, 4), remoteAddr4)
		})
		t.Run("client", func(t *testing.T) {
			a := gitServer(t)
			a.serve(t, w.srv, command(t, w.srv, a.bin, a.line()[1:]...))
			check(t, v.program(t, w, nil, "sh", "-e", "-c", gitScript, "sh", url(remoteAddr4), t.TempDir()))
			checkAllFrom(t, a.clients(t, 4), sourceAddr4)
		})
	})
}
