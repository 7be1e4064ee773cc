package afgraft

import (
	"errors"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"
)

// Socket is an AF_GRAFT socket of a program for the time of one call. No other call changes
// what belongs to it meanwhile.
type Socket struct {
	File  int
	State State
	Store Store
	// Set sets the options that are not done, in their order, and notes the results. It sets
	// only what the program could set itself.
	Set func(file int, options []Option) error
	// Close frees the socket for other calls.
	Close func()
}

// Bound tells whether the socket is at an endpoint.
func (s *Socket) Bound() bool { return s.State.Name != "" }

// setDelayed answers GRAFT_SO_DELAYED.
func (s *Socket) setDelayed(on bool) error {
	s.State.Delayed = on
	return s.Store.SetAFGraft(s.File, s.State)
}

// setNameTransparent answers GRAFT_NAME_TRANSPARENT.
func (s *Socket) setNameTransparent(on bool) error {
	s.State.NameTransparent = on
	return s.Store.SetAFGraft(s.File, s.State)
}

// delay notes an option that is to be set once the socket is bound, or when the program says
// so. The errno is the program's; 0 is success.
func (s *Socket) delay(level, name int, value []byte) (unix.Errno, error) {
	options, err := s.Store.AFGraftOptions(s.File)
	if err != nil {
		return 0, err
	}
	options = append(options, Option{Level: level, Name: name, Value: value})
	err = s.Store.SetAFGraftOptions(s.File, options)
	if errors.Is(err, ErrQueueFull) {
		return unix.ENOBUFS, nil
	}
	return 0, err
}

// execute answers GRAFT_SO_DELAYED_EXECUTE.
func (s *Socket) execute() (unix.Errno, error) {
	if !s.Bound() {
		return unix.EADDRNOTAVAIL, nil
	}
	options, err := s.Store.AFGraftOptions(s.File)
	if err == nil && len(options) > 0 {
		if err = s.Set(s.File, options); err == nil {
			err = s.Store.SetAFGraftOptions(s.File, options)
		}
	}
	return 0, err
}

// setTransparent answers GRAFT_SO_TRANSPARENT.
func (s *Socket) setTransparent(level, name int, value []byte) (unix.Errno, error) {
	if s.State.Delayed {
		return s.delay(level, name, value)
	}
	if !s.Bound() {
		return unix.EADDRNOTAVAIL, nil
	}
	options := []Option{{Level: level, Name: name, Value: value}}
	err := s.Set(s.File, options)
	return unix.Errno(-options[0].Result), err
}

// results are the options that have been set, in the order in which they came.
func (s *Socket) results() ([]Option, error) {
	options, err := s.Store.AFGraftOptions(s.File)
	return slices.DeleteFunc(options, func(o Option) bool { return !o.Done }), err
}

// forget drops results that the program has taken, unless another call has.
func (s *Socket) forget(taken []Option) error {
	options, err := s.Store.AFGraftOptions(s.File)
	if err != nil || len(taken) == 0 {
		return err
	}
	options = slices.DeleteFunc(options, func(o Option) bool {
		same := len(taken) > 0 && reflect.DeepEqual(o, taken[0])
		if same {
			taken = taken[1:]
		}
		return same
	})
	return s.Store.SetAFGraftOptions(s.File, options)
}
