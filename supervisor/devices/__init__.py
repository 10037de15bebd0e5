"""What memory there is: devices, the host, what processes hold, and who has been promised what."""
