package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
)

func TestRemoveKills(t *testing.T) {
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	name := "tsugiki-test-" + strconv.Itoa(os.Getpid())
	g, err := Create(own, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Remove() })
	if _, err := Create(own, name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second group of the same name: %v", err)
	}
	child, err := Create(g.Path(), "child")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := child.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- cmd.Wait() }()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if err := <-died; err == nil {
		t.Error("the process in the group was not killed")
	}
	if _, err := os.Stat(g.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group is still there: %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("removing it again: %v", err)
	}
}

// Groups that outlive a service are beside its group, which systemd empties.
func TestBeside(t *testing.T) {
	for group, want := range map[string]string{
		"system.slice/tsugiki.service":            "system.slice",
		"user.slice/user-0.slice/session-1.scope": "user.slice/user-0.slice",
		"tsugiki.service":                         ".",
		".":                                       ".",
		"system.slice":                            "system.slice",
		"system.slice/docker.service/some/group":  "system.slice/docker.service/some/group",
		"system.slice/tsugiki.service/tsugiki-web-0ff": "system.slice/tsugiki.service/tsugiki-web-0ff",
	} {
		if got := beside(group); got != want {
			t.Errorf("beside %s: %s, want %s", group, got, want)
		}
	}
}
