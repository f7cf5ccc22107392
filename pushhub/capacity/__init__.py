"""`pushhub capacity`: what a load needs, from what a message was measured to cost."""
