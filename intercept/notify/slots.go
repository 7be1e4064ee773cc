package notify

// # What answering calls may take
//
// An answer to a call takes a slot, and maybe a thread of this process for as long as the
// container likes: its program's memory may be a file whose read never ends, and the locks of its
// sockets and epolls are held while the program's own calls wait for such memory. This process
// cannot end such a wait. So each container has a number of slots for all its filters together. If
// none is free, the container's next calls wait in its gates, and calls of other containers do not.
//
// Some slots are the container's own. The others are of a pool, which all containers share: so
// the threads of this process are bounded, also where every container is hostile, and a
// container that finds the pool empty goes on with its own.

const (
	// slotsMax bounds the calls of one container that are handled at once. A gate has as
	// many threads.
	slotsMax = 64
	// slotsOwn are those of them that need no slot of the pool.
	slotsOwn = 2
	// poolSlots is below the number of threads at which Go's runtime gives up, 10000, with room
	// for slotsOwn of some thousands of containers.
	poolSlots = 1024
)

// Pool has the slots that all containers share.
type Pool struct{ free chan struct{} }

// NewPool makes one for all containers of a process.
func NewPool() *Pool { return &Pool{make(chan struct{}, poolSlots)} }

// Slots has the slots of one container.
type Slots struct {
	pool          *Pool
	own, fromPool chan struct{}
}

// NewSlots makes the slots of a container.
func (p *Pool) NewSlots() *Slots {
	return &Slots{p, make(chan struct{}, slotsOwn), make(chan struct{}, slotsMax-slotsOwn)}
}

// take waits for a slot, until stop or ended is closed. What it returns gives the slot back; it
// is nil if there is none.
func (p *Slots) take(stop, ended <-chan struct{}) (leave func()) {
	select {
	case p.own <- struct{}{}:
		return p.leaveOwn
	default:
	}
	select {
	case p.own <- struct{}{}:
		return p.leaveOwn
	case <-stop:
		return nil
	case <-ended:
		return nil
	case p.fromPool <- struct{}{}:
	}
	select {
	case p.pool.free <- struct{}{}:
		return p.leavePool
	case p.own <- struct{}{}:
		<-p.fromPool
		return p.leaveOwn
	case <-stop:
	case <-ended:
	}
	<-p.fromPool
	return nil
}

func (p *Slots) leaveOwn() { <-p.own }

func (p *Slots) leavePool() {
	<-p.pool.free
	<-p.fromPool
}
