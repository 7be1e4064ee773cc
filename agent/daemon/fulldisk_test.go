package daemon

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A daemon starts on a disk that is full, also with the state of a daemon that noted nothing of pods: containers wait for
// it.
func TestStateOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const boot = "this boot"
	dir := t.TempDir()
	testkit.SmallDisk(t, dir, 1<<20)
	s, err := openStore(dir, boot)
	if err != nil {
		t.Fatal(err)
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketPods) == nil {
			return nil
		}
		return tx.DeleteBucket(bucketPods)
	})
	if err := errors.Join(err, s.put(someRecord("a")), s.close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(dir + "/state.db")
	if err != nil {
		t.Fatal(err)
	}
	room := testkit.Fill(t, dir)
	if s, err = openStore(dir, boot); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	d, log := newDaemon(t)
	var notes podNotes
	notes.load(s, d.log)
	if list, err := s.all(); err != nil || len(list) != 1 || len(notes.byUID) != 0 || log.Len() > 0 {
		t.Errorf("records %v, %v; notes %v; log %s", list, err, notes.byUID, log)
	}
	if after, err := os.ReadFile(dir + "/state.db"); err != nil || !bytes.Equal(after, before) {
		t.Errorf("a start writes to the state: %v", err)
	}
	pod := &api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"}
	if err := s.deletePod("u1"); err != nil {
		t.Errorf("nothing is noted of a pod, and it is forgotten: %v", err)
	}
	room()
	if err := notes.note(pod, "1", true); err != nil {
		t.Error(err)
	}
	if kept, err := s.pods(); err != nil || len(kept) != 1 {
		t.Errorf("notes: %v, %v", kept, err)
	}
}

// Nor does a container that was started again without a daemon keep the next one from starting where nothing can be
// written.
func TestStartedAgainOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d, log := newDaemon(t)
	again := api.AgainDir(d.runDir)
	err := errors.Join(os.MkdirAll(again, 0o700), os.WriteFile(again+"/a", []byte(someRecord("a").ID), 0o600),
		d.store.put(someRecord("a")), d.store.close())
	if err == nil {
		d.store.db, err = bbolt.Open(d.config.Load().StateDir+"/state.db", 0o600, &bbolt.Options{ReadOnly: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.adoptAll(); err != nil || !strings.Contains(log.String(), `cannot be written down so" container=a`) {
		t.Errorf("%v; log %s", err, log)
	}
}

// A note that cannot be read is left out, and told: the daemon starts, and has the others.
func TestNoteThatCannotBeRead(t *testing.T) {
	d, log := newDaemon(t)
	if err := d.podNotes.note(&api.Pod{Namespace: "shop", Name: "web", UID: "u1", Container: "c"}, "1", true); err != nil {
		t.Fatal(err)
	}
	if err := d.store.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketPods).Put([]byte("u0"), []byte("{")) }); err != nil {
		t.Fatal(err)
	}
	var notes podNotes
	notes.load(d.store, d.log)
	if len(notes.byUID) != 1 || !notes.has("u1") || !strings.Contains(log.String(), "pod u0") {
		t.Errorf("notes %v; log %s", notes.byUID, log)
	}
}
