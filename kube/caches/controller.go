package caches

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Controller returns the options of a controller that has so many workers.
//
// Its queue has no priorities. That of controller-runtime 0.24.1, which has, counts a worker that has left at the
// end as one that still waits, and holds its lock while it hands an item to nobody: then the process ends only after
// its grace period.
func Controller(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers, UsePriorityQueue: new(bool),
		// As with priorities. That of the other queue allows ten items each second to be tried again, of all together.
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 1000*time.Second),
	}
}
