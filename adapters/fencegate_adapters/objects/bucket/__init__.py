"""Objects in a bucket, fenced by conditional writes: S3 and compatibles, Azure, Google Cloud Storage."""

from fencegate_adapters.objects.bucket.resource import BucketObjects

__all__ = ["BucketObjects"]
