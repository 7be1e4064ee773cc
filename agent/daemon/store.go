package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/tsugiki/tsugiki/agent/container"
	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/api"
)

// stateVersion is the version of a daemon's state. A daemon leaves a state with a higher version
// alone.
const stateVersion = 1

// storeWait is how long another daemon may take to let go of its state.
const storeWait = 2 * time.Second

var (
	bucketMeta       = []byte("meta")
	bucketContainers = []byte("containers")
	bucketPods       = []byte("pods")
	keyVersion       = []byte("version")
)

// identity has the facts about a container that never change.
type identity struct {
	ID           string    `json:"id"`
	Name         string    `json:"name"`
	Token        string    `json:"token"`
	Boot         string    `json:"boot"` // boot of the machine when it was registered
	Created      time.Time `json:"created"`
	UID          int       `json:"uid"`
	GID          int       `json:"gid"`
	LoopbackOnly bool      `json:"loopbackOnly"`
	Programs     bool      `json:"programs"`
	Mode         string    `json:"mode"`
	Annotated    bool      `json:"annotated"` // its rules come from annotations
	// Engine and Published are those of its registration.
	Engine    string   `json:"engine,omitempty"`
	Published []string `json:"published,omitempty"`
	// Pod is the pod of Kubernetes that it belongs to; nil: none.
	Pod *api.Pod `json:"pod,omitempty"`
	// VSock says where a guest's VMM is; empty: it is no guest. Configured says that the configuration has
	// the guest.
	VSock      string `json:"vsock,omitempty"`
	Configured bool   `json:"configured,omitempty"`
	// Endpoints are those with which the container began, and the rules below too. Rules may name endpoints
	// that are gone.
	Endpoints []string `json:"given"`
	Ingress   []string `json:"ingress"`
	Egress    []string `json:"egress"`
	NameRules []string `json:"nameRules,omitempty"`
	// Translate is how IPv4 is translated; nil: it is not.
	Translate *api.Translate `json:"translate,omitempty"`
}

// rules returns the rules that the container got when it was registered.
func (id *identity) rules() api.Rules {
	return api.Rules{Mode: id.Mode, Endpoints: id.Endpoints, Ingress: id.Ingress, Egress: id.Egress, NameRules: id.NameRules, Translate: id.Translate}
}

// record has the facts that a daemon needs to take over a container.
type record struct {
	identity
	container.State
}

// store keeps records. They survive this process but not a reboot, as no container does. So the
// store does not wait for the disk, which takes some milliseconds for each record. It does not read
// the state of another boot, of which the kernel may have written only half.
type store struct {
	db *bbolt.DB
}

// openStore opens or makes the state of this boot in a directory. Only one process can have the
// state open.
func openStore(dir, boot string) (*store, error) {
	path := filepath.Join(dir, "state.db")
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = forgetOtherBoot(path, filepath.Join(dir, "boot"), boot)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w; choose another directory with --state-dir", httpapi.ErrState, err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: storeWait, NoSync: true})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: another agent has %s open; stop that one, or choose another directory with --state-dir", httpapi.ErrState, path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w; mend it, or choose another directory with --state-dir", httpapi.ErrState, path, err)
	}
	s := &store{db}
	if err := s.prepare(path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// forgetOtherBoot removes the state if the file names another boot than this one, and writes this
// boot into the file. A state without that file comes from a version that waited for the disk: its
// records name their boot.
func forgetOtherBoot(state, file, boot string) error {
	written, err := os.ReadFile(file)
	if err == nil && string(written) == boot {
		return nil
	}
	if err == nil {
		err = os.Remove(state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(boot)
	return errors.Join(err, f.Sync(), f.Close()) // before any record
}

func (s *store) prepare(path string) error {
	version := -1
	err := s.db.View(func(tx *bbolt.Tx) (err error) {
		if meta := tx.Bucket(bucketMeta); meta != nil {
			version, err = strconv.Atoi(string(meta.Get(keyVersion)))
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: read %s: %w", httpapi.ErrState, path, err)
	case version == stateVersion:
		return nil // nothing is written: the disk may be full
	case version > stateVersion:
		return fmt.Errorf("%w: %s was written by a newer tsugiki (format %d, this one knows %d); install that one, or choose another directory with --state-dir",
			httpapi.ErrState, path, version, stateVersion)
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		if _, err := tx.CreateBucketIfNotExists(bucketContainers); err != nil {
			return err
		}
		return meta.Put(keyVersion, []byte(strconv.Itoa(stateVersion)))
	})
	if err != nil {
		return fmt.Errorf("%w: write %s: %w", httpapi.ErrState, path, err)
	}
	return nil
}

// put writes a record, and replaces the one of the same name.
func (s *store) put(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	err = s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketContainers).Put([]byte(r.Name), data) })
	if err != nil {
		return fmt.Errorf("%w: write down container %s: %w", httpapi.ErrState, r.Name, err)
	}
	return nil
}

// putPod writes what is noted of a pod.
func (s *store) putPod(uid string, n *podNote) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		pods, err := tx.CreateBucketIfNotExists(bucketPods) // a daemon before may not have had it
		if err != nil {
			return err
		}
		return pods.Put([]byte(uid), data)
	})
	if err != nil {
		return fmt.Errorf("%w: write down pod %s/%s: %w", httpapi.ErrState, n.Namespace, n.Name, err)
	}
	return nil
}

func (s *store) deletePod(uid string) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		pods := tx.Bucket(bucketPods)
		if pods == nil {
			return nil
		}
		return pods.Delete([]byte(uid))
	})
	if err != nil {
		return fmt.Errorf("%w: forget pod %s: %w", httpapi.ErrState, uid, err)
	}
	return nil
}

// pods reads what is noted of all pods, by their UIDs. Beside an error it returns the notes that can be read.
func (s *store) pods() (map[string]*podNote, error) {
	notes := map[string]*podNote{}
	var unread []error
	err := s.db.View(func(tx *bbolt.Tx) error {
		pods := tx.Bucket(bucketPods)
		if pods == nil {
			return nil
		}
		return pods.ForEach(func(uid, data []byte) error {
			var n podNote
			if err := json.Unmarshal(data, &n); err != nil {
				unread = append(unread, fmt.Errorf("pod %s: %w", uid, err))
				return nil
			}
			if n.Containers == nil {
				n.Containers = map[string]podContainer{}
			}
			notes[string(uid)] = &n
			return nil
		})
	})
	if err = errors.Join(append(unread, err)...); err != nil {
		return notes, fmt.Errorf("%w: read: %w", httpapi.ErrState, err)
	}
	return notes, nil
}

func (s *store) delete(name string) error {
	err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketContainers).Delete([]byte(name)) })
	if err != nil {
		return fmt.Errorf("%w: forget container %s: %w", httpapi.ErrState, name, err)
	}
	return nil
}

// get reads the record of a name. It returns nil if there is none.
func (s *store) get(name string) (r *record, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		data := tx.Bucket(bucketContainers).Get([]byte(name))
		if data == nil {
			return nil
		}
		r = &record{}
		return json.Unmarshal(data, r)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: read container %s: %w", httpapi.ErrState, name, err)
	}
	return r, nil
}

// all reads every record, by name. A record that cannot be read is an error: it stands for a
// container.
func (s *store) all() ([]*record, error) {
	var list []*record
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketContainers).ForEach(func(name, data []byte) error {
			var r record
			if err := json.Unmarshal(data, &r); err != nil {
				return fmt.Errorf("container %s: %w", name, err)
			}
			list = append(list, &r)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%w: read: %w", httpapi.ErrState, err)
	}
	return list, nil
}

func (s *store) close() error { return s.db.Close() }
