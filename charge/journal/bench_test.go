package journal

import (
	"path/filepath"
	"testing"
)

// BenchmarkOurs measures the additional cost of the journal for each change of a quota.
func BenchmarkOurs(b *testing.B) {
	j, err := Open(filepath.Join(b.TempDir(), "undo"))
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	e, err := j.Write(Quota, filepath.Join(group(b, "cpu"), quotaFile), ms80)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Done()
	texts := []string{ms30, ms40}
	for i := 0; b.Loop(); i++ {
		if err := e.Ours(texts[1-i&1], texts[i&1]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKillToThawed measures the time from the kill of an agent until its frozen container is
// thawed.
func BenchmarkKillToThawed(b *testing.B) {
	quota, freezer, dir := group(b, "cpu"), group(b, "freezer"), b.TempDir()
	sleeper(b, freezer)
	for b.Loop() {
		b.StopTimer()
		cmd, _ := startAgent(b, "hold", undoHelperPath(b), filepath.Join(dir, "undo"), quota, freezer)
		b.StartTimer()
		if err := cmd.Process.Kill(); err != nil {
			b.Fatal(err)
		}
		await(b, "thawed", func() bool { return read(b, freezer, freezeFile) == thawed })
		b.StopTimer()
		_ = cmd.Wait()
		b.StartTimer()
	}
}
