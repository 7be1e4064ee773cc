package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/setup"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// installed is a node with all that there is, and what another image and other settings make of it.
func installed(t *testing.T) (o Options, before map[string]string) {
	t.Helper()
	o = translating(t)
	install(t, o)
	before = read(t, o.Root)
	tree(t, o.Image, map[string]string{
		Prefix + "/bin/tsugiki": "2", Prefix + "/bin/tsugiki-cni": "cni 2", Prefix + "/new/a": "1",
		Prefix + "/lib/tsugiki/preload/lib/x.so": "->../x.so",
	})
	if err := os.Remove(filepath.Join(o.Image, Prefix, "lib/tsugiki/gate")); err != nil {
		t.Fatal(err)
	}
	tree(t, filepath.Dir(o.Config), map[string]string{"agent.toml": "a = 2\n"})
	text := before[o.Containerd] + "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n  SystemdCgroup = true\n"
	tree(t, o.Root, map[string]string{o.Containerd: text})
	before[o.Containerd] = text
	return o, before
}

// childEnv has a process install, or remove, and be killed at a step.
const childEnv = "TSUGIKI_INSTALL_CHILD"

type child struct {
	Options   Options
	Uninstall bool
	Step      int
}

func TestMain(m *testing.M) {
	text, is := os.LookupEnv(childEnv)
	if !is {
		os.Exit(m.Run())
	}
	var c child
	err := json.Unmarshal([]byte(text), &c)
	atStep = func() {
		if c.Step--; c.Step == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	c.Options.Log = slog.New(slog.DiscardHandler)
	if err == nil && c.Uninstall {
		err = Uninstall(c.Options)
	} else if err == nil {
		err = Install(c.Options)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// killed runs an installation, or a removal, that is killed at a step. It returns false if there is no
// such step.
func killed(t *testing.T, o Options, uninstall bool, step int) bool {
	t.Helper()
	o.Log = nil
	text, err := json.Marshal(child{o, uninstall, step})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == -1 {
		return true
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}

// whole fails the test if a file is neither that of before nor that of afterwards. What is about to take
// a file's place does not count.
func whole(t *testing.T, at string, now, before, after map[string]string) {
	t.Helper()
	for path, text := range now {
		old, was := before[path]
		to, is := after[path]
		unfinished := strings.HasSuffix(path, ".next") || filepath.Base(path) == restartFile
		if !unfinished && (!was || text != old) && (!is || text != to) {
			t.Errorf("%s: %s is half done: %q", at, path, text)
		}
	}
	for path := range before {
		if _, is := after[path]; is && now[path] == "" && before[path] != "" {
			t.Errorf("%s: %s is gone", at, path)
		}
	}
}

// A process is killed at each step of an upgrade. Each file is the old or the new one, and the next process
// completes the installation, or removes it.
func TestKilledAtEachStep(t *testing.T) {
	o, _ := installed(t)
	install(t, o)
	after := read(t, o.Root)
	steps := 0
	for more := true; more; steps++ {
		for _, uninstall := range []bool{false, true} {
			again, before := installed(t)
			more = killed(t, again, false, steps+1)
			at := fmt.Sprint("step ", steps+1)
			whole(t, at, read(t, again.Root), before, after)
			if !uninstall {
				install(t, again)
				if diff := cmp.Diff(after, read(t, again.Root)); diff != "" {
					t.Errorf("%s, and then another process (-want +got):\n%s", at, diff)
				}
				continue
			}
			if err := Uninstall(again); err != nil {
				t.Errorf("%s, and then removed: %v", at, err)
			}
			bare(t, again, at)
		}
	}
	if steps < 15 {
		t.Errorf("there are %d steps", steps)
	}
}

// bare fails the test if the node has anything of ours.
func bare(t *testing.T, o Options, at string) {
	t.Helper()
	now := read(t, o.Root)
	if text := now[o.Containerd]; strings.Contains(text, "tsugiki") || !strings.HasPrefix(text, containerdText) {
		t.Errorf("%s: containerd's configuration is\n%s", at, text)
	}
	delete(now, o.Containerd)
	if diff := cmp.Diff(map[string]string{"/opt/other": ""}, now); diff != "" {
		t.Errorf("%s: after the removal (-want +got):\n%s", at, diff)
	}
}

// The first installation, and the removal, are killed at each step. The next process removes all.
func TestKilledFirstAndLast(t *testing.T) {
	for step, more := 1, true; more; step++ {
		o := translating(t)
		more = killed(t, o, false, step)
		if err := Uninstall(o); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
		bare(t, o, fmt.Sprint("step ", step))
	}
	for step, more := 1, true; more; step++ {
		o := translating(t)
		install(t, o)
		more = killed(t, o, true, step)
		if err := Uninstall(o); err != nil {
			t.Errorf("step %d of the removal: %v", step, err)
		}
		bare(t, o, fmt.Sprintf("step %d of the removal", step))
	}
}

// A disk that becomes full leaves the node as it was, at whatever file. containerd's configuration is the
// last one: then the others are complete.
func TestFullDisk(t *testing.T) {
	for _, first := range []bool{true, false} {
		err := errors.New("not yet")
		for pages := 0; err != nil; pages++ {
			err = fullDisk(t, first, pages)
		}
	}
}

func fullDisk(t *testing.T, first bool, pages int) error {
	t.Helper()
	o := translating(t)
	before := read(t, o.Root)
	testkit.SmallDisk(t, o.Root, 1<<20)
	tree(t, o.Root, before)
	if !first {
		install(t, o)
		tree(t, o.Image, map[string]string{Prefix + "/bin/tsugiki": "2", Prefix + "/bin/tsugiki-cni": "cni 2", Prefix + "/lib/tsugiki/gate": "2"})
		before = read(t, o.Root)
	}
	room := leave(t, o.Root, pages)
	err := Install(o)
	room()
	now := read(t, o.Root)
	switch {
	case err == nil:
	case !errors.Is(err, unix.ENOSPC):
		t.Errorf("%d pages: %v", pages, err)
	case !strings.Contains(err.Error(), "/etc/containerd/"):
		if diff := cmp.Diff(before, now); diff != "" {
			t.Errorf("%d pages, %v: the node has changed (-was +is):\n%s", pages, err, diff)
		}
	case now[o.Containerd] != before[o.Containerd]:
		t.Errorf("%d pages, %v: containerd's configuration is\n%s", pages, err, now[o.Containerd])
	}
	for path := range now {
		if strings.HasSuffix(path, ".next") || strings.Contains(path, ".tsugiki-setup-") {
			t.Errorf("%d pages, %v: left is %s", pages, err, path)
		}
	}
	install(t, o)
	return err
}

// leave has a disk have no more than some pages, until room is called.
func leave(t *testing.T, dir string, pages int) (room func()) {
	t.Helper()
	room = testkit.Fill(t, dir)
	file := filepath.Join(dir, "fill")
	st, err := os.Stat(file)
	if err == nil {
		err = os.Truncate(file, st.Size()-int64(pages*os.Getpagesize()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return room
}

// A folder that cannot be written says so, and nothing else was written.
func TestReadOnlyFolder(t *testing.T) {
	for _, folder := range []string{"/etc/tsugiki", "/etc/containerd", "/etc/cni", "/usr/lib/cni"} {
		o := translating(t)
		at := filepath.Join(o.Root, folder)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		before := read(t, o.Root)
		readOnly(t, at)
		err := Install(o)
		if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s: %v", folder, err)
		}
		now := read(t, o.Root)
		if folder == "/etc/containerd" { // it is written last
			if err := Uninstall(o); !errors.Is(err, unix.EROFS) && err != nil {
				t.Errorf("%s: %v", folder, err)
			}
			now = read(t, o.Root)
		}
		if diff := cmp.Diff(before, now); diff != "" {
			t.Errorf("%s: the node has changed (-was +is):\n%s", folder, diff)
		}
	}
}

// readOnly has a folder be read-only until the test ends.
func readOnly(t *testing.T, dir string) {
	t.Helper()
	err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
	if err == nil {
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		err = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Pods of two images install at once, and one removes. Files are of one of the images, and complete.
func TestTwoAtOnce(t *testing.T) {
	o := translating(t)
	install(t, o)
	other := o
	other.Image = filepath.Join(t.TempDir(), "image")
	big := strings.Repeat("2", 1<<20)
	tree(t, other.Image, map[string]string{Prefix + "/bin/tsugiki": big, Prefix + "/bin/tsugiki-cni": big, Prefix + "/new/a": "1"})
	both := [2]map[string]string{}
	for i, o := range []Options{o, other} {
		install(t, o)
		both[i] = read(t, o.Root)
	}
	for range 5 {
		var all sync.WaitGroup
		for _, o := range []Options{o, other, o, other} {
			all.Go(func() {
				if err := Install(o); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		now := read(t, o.Root)
		if cmp.Diff(both[0], now) != "" && cmp.Diff(both[1], now) != "" {
			t.Errorf("the node is of neither image: %v", slicesOf(now))
		}
	}
	for range 50 { // whoever removes the folder may do so while another waits for its lock
		var all sync.WaitGroup
		for _, step := range []func(Options) error{Install, Uninstall, Install, Uninstall, Uninstall} {
			all.Go(func() {
				if err := step(o); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if err := Uninstall(o); err != nil {
		t.Error(err)
	}
	bare(t, o, "at once")
}

// A pod has the folder as a mount, which stays when another pod removes the folder from the node.
func TestFolderIsRemovedBelowMount(t *testing.T) {
	o := translating(t)
	below := filepath.Join(t.TempDir(), "tsugiki")
	folder := o.node(Prefix)
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.Mkdir(below, 0o755), unix.Mount(below, folder, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Remove(below); err != nil {
		t.Fatal(err)
	}
	if err := Install(o); err == nil || !strings.Contains(err.Error(), "/opt/tsugiki was removed from the node by another pod") {
		t.Errorf("the error is %v", err)
	}
}

// slicesOf are the names of files, with the lengths of their texts.
func slicesOf(files map[string]string) (list []string) {
	for name, text := range files {
		list = append(list, name+" "+strconv.Itoa(len(text)))
	}
	return list
}

// What setup has left of a change that it did not complete is removed by the next process.
func TestSweep(t *testing.T) {
	o := translating(t)
	leave := map[string]string{"/etc/containerd/.tsugiki-setup-1": "half", setup.NetworkFile + ".next": "half", Prefix + "/bin/tsugiki.next": "half"}
	for _, step := range []func(Options) error{Install, Install, Uninstall} {
		tree(t, o.Root, leave)
		if err := step(o); err != nil {
			t.Fatal(err)
		}
		now := read(t, o.Root)
		maps.DeleteFunc(now, func(path, _ string) bool { return leave[path] == "" })
		if len(now) > 0 {
			t.Errorf("left are %v", now)
		}
	}
}
